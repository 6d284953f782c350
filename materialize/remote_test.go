package materialize

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// fileServer is a server with one file, whose answers a test may spoil.
type fileServer struct {
	*httptest.Server
	content  []byte
	etag     atomic.Value // string
	requests atomic.Int64
	mu       sync.Mutex                                                 // for tests
	spoil    func(n int64, w http.ResponseWriter, r *http.Request) bool // nil, or false: the answer is as it should be
}

func serveFile(t *testing.T, content []byte) *fileServer {
	t.Helper()
	s := &fileServer{content: content}
	s.etag.Store(`"one"`)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := s.requests.Add(1)
		if s.spoil == nil || !s.spoil(n, w, r) {
			s.answer(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *fileServer) answer(w http.ResponseWriter, r *http.Request) {
	if etag := s.etag.Load().(string); etag != "" {
		w.Header().Set("Etag", etag)
	}
	http.ServeContent(w, r, "", time.Unix(1_700_000_000, 0), bytes.NewReader(s.content))
}

// hasty is a web that waits for nothing between tries.
func hasty(t *testing.T) *web {
	t.Helper()
	w := newWeb()
	w.pauses = make([]time.Duration, 3)
	t.Cleanup(w.close)
	return w
}

// telling are bytes that tell where they are.
func telling(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return b
}

func TestAFileOfAServerIsTheLocalOne(t *testing.T) {
	for _, tag := range []int{1, 5, 8, 10} {
		name, want := large(t, tag)
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		s := serveFile(t, content)
		dir := t.TempDir()
		for _, with := range []string{"without an index", "with an index"} {
			c := open(t, Options{IndexDir: dir}, s.URL+"/run.hipo")
			for _, b := range c.View().Banks() {
				for _, col := range append([]*Column{b.Offsets()}, b.Columns...) {
					got, _ := readAll(t, col)
					if w, ok := want[b.Name+"/"+col.Name]; ok && !bytes.Equal(got, w) {
						t.Errorf("tag %d, %s: %s/%s differs from what was written", tag, with, b.Name, col.Name)
					}
				}
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Of a file that is indexed one column is fetched stream by stream, and nothing
// else is.
func TestAColumnIsFetchedWithoutDirectories(t *testing.T) {
	for _, tt := range []struct{ tag, column int }{{8, 1}, {10, 3}, {5, 0}, {13, 2}, {1, 1}} {
		name, want := large(t, tt.tag)
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		s := serveFile(t, content)
		dir := t.TempDir()
		err = Index(t.Context(), []string{s.URL + "/run.hipo"}, IndexOptions{Dir: dir}, func(r Indexed) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		c := open(t, Options{IndexDir: dir}, s.URL+"/run.hipo")
		var asks []extent
		s.spoil = func(_ int64, _ http.ResponseWriter, r *http.Request) bool {
			from, length, _ := asked(r)
			s.mu.Lock()
			defer s.mu.Unlock()
			asks = append(asks, extent{off: from, length: length})
			return false
		}
		b := bank(t, c.View(), "T::b2")
		col := b.Columns[tt.column]
		var plan []extent
		err = c.Plan(t.Context(), b.Name, col.Name, 0, c.View().Entries(), func(r Range) error {
			if r.What != "directory" {
				plan = append(plan, extent{off: r.Off, length: r.Length})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		asks = nil
		if got, _ := readAll(t, col); !bytes.Equal(got, want[b.Name+"/"+col.Name]) {
			t.Errorf("tag %d: %s differs from what was written", tt.tag, col.Name)
		}
		needed, fetched := int64(0), int64(0)
		for _, x := range join(plan) {
			needed += x.length
		}
		for _, x := range asks {
			fetched += x.length
		}
		most := max(len(join(plan)), len(c.sources[0].runs))
		if len(asks) > most || fetched > needed {
			t.Errorf("tag %d: %d requests for %d bytes, want %d and %d", tt.tag, len(asks), fetched, most, needed)
		}
		if offsets := ints(t, b.Offsets()); offsets[len(offsets)-1] != c.View().chain.m.rows[b.id] {
			t.Errorf("tag %d: the last offset is %d", tt.tag, offsets[len(offsets)-1])
		}
	}
}

// An index that puts streams elsewhere, with the right checksums, yields no wrong
// values: the directory says where they are.
func TestAnIndexThatPutsStreamsElsewhereIsNotBelieved(t *testing.T) {
	name, want := large(t, 8)
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	s := serveFile(t, content)
	dir := t.TempDir()
	address := s.URL + "/run.hipo"
	for _, lie := range []func(x *recordSums){
		func(x *recordSums) { x.streams[0].length++; x.streams[1].length-- },
		func(x *recordSums) { x.head -= 4; x.streams[0].length += 4 },
	} {
		if err := Index(t.Context(), []string{address}, IndexOptions{Dir: dir}, func(Indexed) {}); err != nil {
			t.Fatal(err)
		}
		path := IndexPath(dir, address)
		all, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		head, blocks, err := parseIndex(all)
		if err != nil {
			t.Fatal(err)
		}
		for i := range head.sums {
			lie(&head.sums[i])
		}
		if err := writeIndex(path, head.encode(), blocks, 0o600, head.id.size); err != nil {
			t.Fatal(err)
		}
		c := open(t, Options{IndexDir: dir}, address)
		for _, b := range c.View().Banks() {
			for _, col := range b.Columns {
				if _, err := col.Open(t.Context()); err != nil {
					if !errors.Is(err, syscall.ESTALE) {
						t.Errorf("%s/%s: %v", b.Name, col.Name, err)
					}
					continue
				}
				if got, _ := readAll(t, col); !bytes.Equal(got, want[b.Name+"/"+col.Name]) {
					t.Errorf("%s/%s differs from what was written", b.Name, col.Name)
				}
			}
		}
		os.Remove(path)
	}
}

func TestAnswersThatFailAreAskedForAgain(t *testing.T) {
	content := telling(300_000)
	hijack := func(w http.ResponseWriter, what string) bool {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = conn.Write([]byte(what))
		return true
	}
	for _, tt := range []struct {
		name  string
		spoil func(w http.ResponseWriter, r *http.Request) bool
	}{
		{"500", func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true }},
		{"503 and when to come back", func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(503)
			return true
		}},
		{"429", func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(429); return true }},
		{"a connection that ends at once", func(w http.ResponseWriter, _ *http.Request) bool { return hijack(w, "") }},
		{"a head that breaks off", func(w http.ResponseWriter, _ *http.Request) bool { return hijack(w, "HTTP/1.1 206 Partial\r\nConte") }},
		{"no HTTP", func(w http.ResponseWriter, _ *http.Request) bool { return hijack(w, "SSH-2.0-OpenSSH_9.2p1\r\n") }},
		{"a body that breaks off", func(w http.ResponseWriter, r *http.Request) bool {
			from, length, _ := asked(r)
			return hijack(w, fmt.Sprintf("HTTP/1.1 206 Partial Content\r\nEtag: \"one\"\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\n\r\n%s",
				length, from, from+length-1, len(content), content[from:from+length/2]))
		}},
		{"an announced length that is too short", func(w http.ResponseWriter, r *http.Request) bool {
			from, length, _ := asked(r)
			return hijack(w, fmt.Sprintf("HTTP/1.1 206 Partial Content\r\nEtag: \"one\"\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\n\r\n%s",
				length/2, from, from+length-1, len(content), content[from:from+length/2]))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serveFile(t, content)
			s.spoil = func(n int64, w http.ResponseWriter, r *http.Request) bool { return n%3 != 0 && tt.spoil(w, r) }
			r, err := hasty(t).openRemote(t.Context(), s.URL+"/run.hipo")
			if err != nil {
				t.Fatal(err)
			}
			r.opened()
			p := make([]byte, 200_001)
			if n, err := r.readAt(t.Context(), p, 70_000); n != len(p) || err != nil {
				t.Fatalf("%d bytes, %v", n, err)
			}
			if !bytes.Equal(p, content[70_000:270_001]) {
				t.Error("what came is not what is there")
			}
			s.spoil = func(_ int64, w http.ResponseWriter, r *http.Request) bool { return tt.spoil(w, r) }
			before := s.requests.Load()
			if _, err := r.readAt(t.Context(), p[:1000], 100_000); err == nil && !strings.Contains(tt.name, "body") {
				t.Error("no error of a server that does nothing else")
			}
			if n := s.requests.Load() - before; n > 16 {
				t.Errorf("asked %d times", n)
			}
		})
	}
}

// asked takes a request's range apart.
func asked(r *http.Request) (from, length, to int64) {
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); err != nil {
		panic(err)
	}
	return from, to - from + 1, to
}

func TestASilentServerIsGivenUp(t *testing.T) {
	s := serveFile(t, telling(100_000))
	end := make(chan struct{})
	defer close(end)
	var begins atomic.Bool
	s.spoil = func(n int64, w http.ResponseWriter, _ *http.Request) bool {
		if n == 1 {
			return false
		}
		if begins.Load() {
			w.Header().Set("Etag", `"one"`)
			w.Header().Set("Content-Range", "bytes 70000-70999/100000")
			w.WriteHeader(http.StatusPartialContent)
			w.(http.Flusher).Flush()
		}
		<-end
		return true
	}
	w := hasty(t)
	r, err := w.openRemote(t.Context(), s.URL+"/run.hipo")
	if err != nil {
		t.Fatal(err)
	}
	r.opened()
	w.patience = 10 * time.Millisecond
	for range 2 {
		if _, err := r.readAt(t.Context(), make([]byte, 1000), 70_000); !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("%v, want ETIMEDOUT", err)
		}
		begins.Store(true)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w.patience = time.Hour
	time.AfterFunc(time.Millisecond, cancel)
	if _, err := r.readAt(ctx, make([]byte, 1000), 70_000); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that nobody waits any more", err)
	}
}

func TestServersThatCannotBeReadFromAreRefused(t *testing.T) {
	content := telling(200_000)
	for _, tt := range []struct {
		name, want string
		errno      error
		spoil      func(s *fileServer, w http.ResponseWriter, r *http.Request)
	}{
		{"no ranges", "whole files alone", syscall.EREMOTEIO, func(s *fileServer, w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			s.answer(w, r)
		}},
		{"compressed on the way", "compresses what it sends", syscall.EREMOTEIO, func(s *fileServer, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			s.answer(w, r)
		}},
		{"no Content-Range", "does not say which", syscall.EREMOTEIO, func(_ *fileServer, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusPartialContent)
		}},
		{"another range", "where 0 to 65535 were asked for", syscall.EREMOTEIO, func(s *fileServer, w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Range", "bytes=1-65536")
			s.answer(w, r)
		}},
		{"not there", "404 Not Found", os.ErrNotExist, func(_ *fileServer, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }},
		{"not for everybody", "403 Forbidden (AccessDenied)", syscall.EACCES, func(_ *fileServer, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(403)
			_, _ = w.Write([]byte("<Error><Code>AccessDenied</Code><Message>secret</Message></Error>"))
		}},
		{"round and round", "more than ten times", nil, func(_ *fileServer, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path+"?secret", http.StatusFound)
		}},
		{"nowhere", "no address", syscall.EREMOTEIO, func(_ *fileServer, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://[secret?x")
			w.WriteHeader(http.StatusFound)
		}},
		{"more than asked for", "more than it was asked for", syscall.EREMOTEIO, func(s *fileServer, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 0-65535/200000")
			w.WriteHeader(http.StatusPartialContent)
			for range 3 {
				_, _ = w.Write(content[:65536])
				w.(http.Flusher).Flush()
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serveFile(t, content)
			s.spoil = func(_ int64, w http.ResponseWriter, r *http.Request) bool { tt.spoil(s, w, r); return true }
			name := strings.Replace(s.URL, "://", "://user:secret@", 1) + "/run.hipo?token=secret"
			_, err := Open(t.Context(), []string{name}, Options{})
			var se *SourceError
			if !errors.As(err, &se) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v\nwant a *SourceError with %q", err, tt.want)
			}
			if tt.errno != nil && !errors.Is(err, tt.errno) {
				t.Errorf("%v is no %v", err, tt.errno)
			}
		})
	}
}

func TestAnotherVersionOfAFileIsStale(t *testing.T) {
	content := telling(300_000)
	for _, tt := range []struct {
		name   string
		weak   bool
		change func(s *fileServer)
	}{
		{"another tag", false, func(s *fileServer) { s.etag.Store(`"two"`) }},
		{"another weak tag", true, func(s *fileServer) { s.etag.Store(`W/"two"`) }},
		{"no tag", false, func(s *fileServer) { s.etag.Store("") }},
		{"another length", false, func(s *fileServer) { s.content = s.content[:299_999] }},
		{"shorter than what is read", false, func(s *fileServer) { s.content = s.content[:10] }},
		{"it is gone", false, func(s *fileServer) {
			s.spoil = func(_ int64, w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(404); return true }
		}},
		{"whole files from now on", false, func(s *fileServer) {
			s.spoil = func(_ int64, w http.ResponseWriter, r *http.Request) bool {
				r.Header.Del("Range")
				s.etag.Store(`"two"`)
				r.Header.Del("If-Match")
				s.answer(w, r)
				return true
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serveFile(t, content)
			if tt.weak {
				s.etag.Store(`W/"one"`)
			}
			r, err := hasty(t).openRemote(t.Context(), s.URL+"/run.hipo")
			if err != nil {
				t.Fatal(err)
			}
			r.opened()
			tt.change(s)
			p := make([]byte, 1000)
			if _, err := r.readAt(t.Context(), p, 100_000); !errors.Is(err, syscall.ESTALE) {
				t.Errorf("%v, want ESTALE", err)
			}
			s.etag.Store(`"one"`)
			s.content, s.spoil = content, nil
			if _, err := r.readAt(t.Context(), p, 100_000); !errors.Is(err, syscall.ESTALE) {
				t.Errorf("%v once it is back, want ESTALE", err)
			}
		})
	}
}

func TestAFileWithAnotherTagIsCountedAnew(t *testing.T) {
	name, _ := large(t, 1)
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	s := serveFile(t, content)
	dir := t.TempDir()
	requests := func() int64 {
		before := s.requests.Load()
		c := open(t, Options{IndexDir: dir}, s.URL+"/run.hipo")
		if _, err := c.View().Banks()[0].Offsets().Size(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		return s.requests.Load() - before
	}
	first, second := requests(), requests()
	if second > 3 || first <= second {
		t.Errorf("%d requests without an index, %d with one", first, second)
	}
	s.etag.Store(`"two"`)
	if third := requests(); third != first {
		t.Errorf("%d requests where the tag is another, want %d", third, first)
	}
}

func TestSecretsOfAnAddressAreKeptNowhere(t *testing.T) {
	name, _ := large(t, 1)
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	s := serveFile(t, content)
	s.spoil = func(_ int64, w http.ResponseWriter, r *http.Request) bool {
		if user, password, _ := r.BasicAuth(); user != "user" || password != "secret" || r.URL.RawQuery != "token=secret" {
			w.WriteHeader(401)
			return true
		}
		return false
	}
	dir := t.TempDir()
	address := strings.Replace(s.URL, "://", "://user:secret@", 1) + "/run.hipo?token=secret#secret"
	c := open(t, Options{IndexDir: dir}, address)
	readAll(t, c.View().Banks()[0].Offsets())
	f := c.Files()[0]
	equal(t, "name", f.Name, s.URL+"/run.hipo")
	equal(t, "mode", f.Mode, os.FileMode(0o400))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	indexes, err := filepath.Glob(filepath.Join(dir, "*"+IndexSuffix))
	if err != nil || len(indexes) != 1 {
		t.Fatalf("%v, %v", indexes, err)
	}
	b, err := os.ReadFile(indexes[0])
	if err != nil || bytes.Contains(b, []byte("secret")) {
		t.Errorf("the index has the secret, or %v", err)
	}
	s.Close()
	if _, err := Open(context.Background(), []string{address}, Options{}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}

func TestPlainNames(t *testing.T) {
	for name, want := range map[string]string{
		"run.hipo":                            "run.hipo",
		"/data/https://x":                     "/data/https://x",
		"HTTPS://h/run.hipo":                  "https://h/run.hipo",
		"http://u:p@h:80/a@b/run.hipo?x#y":    "http://h:80/a@b/run.hipo",
		"http://u:p?@h/run.hipo":              "an address that cannot be understood",
		"http://h?secret":                     "http://h",
		"s3://bucket/a?b#c@d/run 1.hipo":      "s3://bucket/a?b#c@d/run 1.hipo",
		"https://u@p@h/run.hipo":              "https://h/run.hipo",
		"root://dtn.example.org//run.hipo?xy": "root://dtn.example.org//run.hipo?xy",
	} {
		equal(t, name, PlainName(name), want)
	}
}

func FuzzContentRange(f *testing.F) {
	for _, s := range []string{"bytes 0-0/1", "bytes 5-4/10", "bytes */0", "bytes 0-9/*", "bytes 0-18446744073709551615/18446744073709551615", "bytes -1-2/3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		from, length, size, ok := parseContentRange(s)
		if ok && (from < 0 || length <= 0 || from+length > size || from+length < 0) {
			t.Errorf("%q: %d, %d, %d", s, from, length, size)
		}
	})
}
