// Every file of a bank with npyjs.
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { parse } from "npyjs";

const [mount, out, ...banks] = process.argv.slice(2);
for (const bank of banks) {
  mkdirSync(join(out, bank), { recursive: true });
  for (const name of readdirSync(join(mount, bank)).filter((n) => n.endsWith(".npy"))) {
    const file = readFileSync(join(mount, bank, name));
    const { data, shape, dtype } = parse(file.buffer.slice(file.byteOffset, file.byteOffset + file.length));
    let sum = 0;
    for (const value of data) sum += Number(value); // an int64 is a BigInt
    console.log(`${bank}/${name}`, dtype, shape.join("x"), String(sum));
    writeFileSync(join(out, bank, name.slice(0, -4)), data);
  }
}
