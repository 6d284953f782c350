// Command columns reads every file of a bank with npyio.
package main

import (
	"encoding/binary"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"codeberg.org/sbinet/npyio/npy"
)

type number interface {
	int8 | int16 | int32 | int64 | float32 | float64
}

// dtype is the header's word without the quotes that npyio leaves.
func dtype(r *npy.Reader) string {
	return strings.Trim(r.Header.Descr.Type, "'")
}

func report[T number](r *npy.Reader, name, out string) error {
	var values []T
	if err := r.Read(&values); err != nil {
		return err
	}
	var shape []string
	for _, n := range r.Header.Descr.Shape {
		shape = append(shape, strconv.Itoa(n))
	}
	sum := 0.0
	for _, v := range values {
		sum += float64(v)
	}
	fmt.Println(name, dtype(r), strings.Join(shape, "x"), sum)
	content, err := binary.Append(nil, binary.LittleEndian, values)
	if err != nil {
		return err
	}
	return os.WriteFile(out, content, 0o666)
}

func column(path, name, out string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := npy.NewReader(f)
	if err != nil {
		return err
	}
	switch dtype(r) {
	case "|i1":
		return report[int8](r, name, out)
	case "<i2":
		return report[int16](r, name, out)
	case "<i4":
		return report[int32](r, name, out)
	case "<i8":
		return report[int64](r, name, out)
	case "<f4":
		return report[float32](r, name, out)
	case "<f8":
		return report[float64](r, name, out)
	}
	return fmt.Errorf("no type %s", dtype(r))
}

func main() {
	mount, out := os.Args[1], os.Args[2]
	for _, bank := range os.Args[3:] {
		if err := os.MkdirAll(filepath.Join(out, bank), 0o777); err != nil {
			log.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(mount, bank, "*.npy"))
		if err != nil {
			log.Fatal(err)
		}
		for _, path := range files {
			stem := strings.TrimSuffix(filepath.Base(path), ".npy")
			if err := column(path, bank+"/"+stem+".npy", filepath.Join(out, bank, stem)); err != nil {
				log.Fatalf("%s: %v", path, err)
			}
		}
	}
}
