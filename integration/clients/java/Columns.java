import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.stream.Collectors;

import org.jetbrains.bio.npy.NpyArray;
import org.jetbrains.bio.npy.NpyFile;

/** Every file of a bank with the npy reader of JetBrains. */
class Columns {
    public static void main(String[] args) throws IOException {
        for (String bank : Arrays.asList(args).subList(2, args.length)) {
            Path out = Files.createDirectories(Path.of(args[1], bank));
            try (var files = Files.newDirectoryStream(Path.of(args[0], bank), "*.npy")) {
                for (Path file : files) {
                    String name = file.getFileName().toString();
                    report(bank + "/" + name, NpyFile.read(file, 1 << 20), out.resolve(name.replaceAll("\\.npy$", "")));
                }
            }
        }
    }

    static void report(String name, NpyArray array, Path out) throws IOException {
        String dtype;
        double sum = 0;
        ByteBuffer content;
        if (array.getData() instanceof byte[] values) {
            dtype = "|i1";
            content = buffer(values.length);
            for (byte v : values) {
                sum += v;
                content.put(v);
            }
        } else if (array.getData() instanceof short[] values) {
            dtype = "<i2";
            content = buffer(2 * values.length);
            for (short v : values) {
                sum += v;
                content.putShort(v);
            }
        } else if (array.getData() instanceof int[] values) {
            dtype = "<i4";
            content = buffer(4 * values.length);
            for (int v : values) {
                sum += v;
                content.putInt(v);
            }
        } else if (array.getData() instanceof long[] values) {
            dtype = "<i8";
            content = buffer(8 * values.length);
            for (long v : values) {
                sum += v;
                content.putLong(v);
            }
        } else if (array.getData() instanceof float[] values) {
            dtype = "<f4";
            content = buffer(4 * values.length);
            for (float v : values) {
                sum += v;
                content.putFloat(v);
            }
        } else {
            double[] values = array.asDoubleArray();
            dtype = "<f8";
            content = buffer(8 * values.length);
            for (double v : values) {
                sum += v;
                content.putDouble(v);
            }
        }
        String shape = Arrays.stream(array.getShape()).mapToObj(String::valueOf).collect(Collectors.joining("x"));
        System.out.println(name + " " + dtype + " " + shape + " " + sum);
        Files.write(out, content.array());
    }

    static ByteBuffer buffer(int bytes) {
        return ByteBuffer.allocate(bytes).order(ByteOrder.LITTLE_ENDIAN);
    }
}
