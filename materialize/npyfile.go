package materialize

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// npyFile is an array in a .npy file that somebody else may have written. It
// opens its file when it reads.
type npyFile struct {
	path  string
	dtype string // "|i1", "<i2", "<i4", "<i8", "<f4", "<f8" or "<u4"
	rows  int64
	width int64 // bytes a row
	n     int   // values a row: 1, or the second number of the shape
	data  int64 // where the values begin
}

// letters are the types of columns by dtype.
var letters = map[string]string{"|i1": "B", "<i2": "S", "<i4": "I", "<i8": "L", "<f4": "F", "<f8": "D"}

// maxNpyHeader is more than any header of a plain array takes.
const maxNpyHeader = 64 << 10

// openNpy reads the header of an array and compares it with the file's length.
func openNpy(path string) (*npyFile, error) {
	f, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	a := &npyFile{path: path}
	if err := a.readHeader(f, size); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return a, nil
}

// openRegular opens a file, and nothing that would block or act on being opened.
func openRegular(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, st.Size(), nil
}

// readHeader reads magic, version, length and the text of a header, which is a
// dictionary as Python spells it.
func (a *npyFile) readHeader(r io.ReaderAt, size int64) error {
	b := make([]byte, min(size, maxNpyHeader))
	if n, err := r.ReadAt(b, 0); n < len(b) {
		return err
	}
	const magic = "\x93NUMPY"
	if len(b) < 10 || string(b[:6]) != magic {
		return errors.New("not a .npy file: write it with numpy.save")
	}
	begin, length := 10, int(binary.LittleEndian.Uint16(b[8:]))
	switch b[6] {
	case 1:
	case 2, 3:
		if len(b) < 12 {
			return errors.New("the header is cut short")
		}
		begin, length = 12, int(min(binary.LittleEndian.Uint32(b[8:]), maxNpyHeader))
	default:
		return fmt.Errorf("version %d.%d of the .npy format; 1.0 to 3.0 are read", b[6], b[7])
	}
	if begin+length > len(b) {
		return errors.New("the header is cut short, or too long")
	}
	shape, fortran, err := a.parse(string(b[begin : begin+length]))
	if err != nil {
		return err
	}
	item, _ := strconv.Atoi(a.dtype[2:])
	a.n, a.data = 1, int64(begin+length)
	if len(shape) < 1 || len(shape) > 2 {
		return fmt.Errorf("an array of %d dimensions; want shape (rows,) or (rows, N)", len(shape))
	}
	a.rows = shape[0]
	if len(shape) == 2 {
		if shape[1] < 1 || shape[1] > 1<<24 {
			return fmt.Errorf("%d values a row; want shape (rows,) or (rows, N)", shape[1])
		}
		a.n = int(shape[1])
		if fortran && a.n > 1 && a.rows > 1 {
			return errors.New("the array is in Fortran order; write numpy.ascontiguousarray of it")
		}
	}
	a.width = int64(item * a.n)
	if have := size - a.data; have%a.width != 0 || have/a.width != a.rows {
		return fmt.Errorf("%d rows of %d bytes declared, the file has %d bytes behind its header", a.rows, a.width, have)
	}
	return nil
}

// parse reads the text of a header, and sets the dtype.
func (a *npyFile) parse(text string) (shape []int64, fortran bool, err error) {
	bad := errors.New("the header is not one that numpy.save writes")
	fields := map[string]string{}
	s, ok := strings.CutPrefix(strings.TrimSpace(text), "{")
	if s, ok = cutEnd(s, ok); !ok {
		return nil, false, bad
	}
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(strings.TrimPrefix(s, ",")) {
		key, rest, ok := quoted(s)
		if !ok {
			return nil, false, bad
		}
		rest, ok = strings.CutPrefix(strings.TrimSpace(rest), ":")
		rest = strings.TrimSpace(rest)
		if !ok || rest == "" {
			return nil, false, bad
		}
		var value string
		switch rest[0] {
		case '\'', '"':
			value, s, ok = quoted(rest)
		case '(':
			value, s, ok = strings.Cut(rest[1:], ")")
		case '[':
			return nil, false, errors.New("a structured array; write each of its fields to a file of its own")
		default:
			n := strings.IndexByte(rest+",", ',')
			value, s = strings.TrimSpace(rest[:n]), rest[n:]
		}
		if s = strings.TrimSpace(s); !ok || s != "" && s[0] != ',' {
			return nil, false, bad
		}
		fields[key] = value
	}
	for n := range strings.SplitSeq(fields["shape"], ",") {
		if n = strings.TrimSuffix(strings.TrimSpace(n), "L"); n == "" {
			continue
		}
		v, err := strconv.ParseUint(n, 10, 62)
		if err != nil {
			return nil, false, bad
		}
		shape = append(shape, int64(v))
	}
	order := fields["fortran_order"]
	if _, ok := fields["shape"]; !ok || order != "True" && order != "False" {
		return nil, false, bad
	}
	a.dtype = fields["descr"]
	switch _, ok := letters[a.dtype]; {
	case ok || a.dtype == "<u4":
	case strings.HasPrefix(a.dtype, ">"):
		return nil, false, fmt.Errorf("dtype %s is big-endian; convert it with astype(%q)", a.dtype, "<"+a.dtype[1:])
	default:
		return nil, false, errType(a.dtype)
	}
	return shape, order == "True", nil
}

func errType(dtype string) error {
	return fmt.Errorf("dtype %q; HIPO has int8, int16, int32, int64, float32 and float64: convert it with astype", dtype)
}

func cutEnd(s string, ok bool) (string, bool) {
	if !ok {
		return s, false
	}
	return strings.CutSuffix(s, "}")
}

// quoted takes a string off the front, which has no escapes.
func quoted(s string) (text, rest string, ok bool) {
	if s == "" || s[0] != '\'' && s[0] != '"' {
		return "", "", false
	}
	return strings.Cut(s[1:], s[:1])
}

// read gives n rows from the given one on.
func (a *npyFile) read(row, n int64) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	f, _, err := openRegular(a.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, n*a.width)
	if _, err := f.ReadAt(b, a.data+row*a.width); errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: it has become shorter", a.path)
	} else if err != nil {
		return nil, err
	}
	return b, nil
}

// readInts is read for an array of 64-bit integers.
func (a *npyFile) readInts(row, n int64) ([]int64, error) {
	b, err := a.read(row, n)
	if err != nil {
		return nil, err
	}
	v := make([]int64, n)
	for i := range v {
		v[i] = int64(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return v, nil
}
