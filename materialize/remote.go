package materialize

import (
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/zeebo/xxh3"
)

// remoteSchemes begin the names of sources that a server has.
var remoteSchemes = regexp.MustCompile(`^(?i:https?|s3)://`)

// IsRemote reports whether a source is named by an address that can be read:
// http, https or s3.
func IsRemote(name string) bool { return remoteSchemes.MatchString(name) }

// PlainName is how a source is called where it is printed or stored: an address
// without what may be secret in it (user, password, query). It stays as it is if
// it is no address.
func PlainName(name string) string {
	if !IsRemote(name) {
		return name
	}
	if rest := name[len("s3"):]; strings.EqualFold(name[:len("s3")], "s3") { // a key may have any character
		return "s3" + rest
	}
	u, err := url.Parse(name)
	if err != nil {
		return "an address that cannot be understood"
	}
	u.User, u.RawQuery, u.Fragment, u.RawFragment, u.ForceQuery = nil, "", "", "", false
	return u.String()
}

const (
	// endBytes of a remote file's beginning and of its end are kept while it is
	// opened: most headers, dictionaries and trailers are in there.
	endBytes = 64 << 10
	mostHead = 16 << 20
	// mostConnections to one server are open at once.
	mostConnections = 16
	// looksHold is how long an answer of the server says that a file is there.
	looksHold = time.Minute
	// progress of an answer that breaks off is what makes its server worth more tries.
	progress = 64 << 10
	// mostPause bounds what a server may ask to be waited for.
	mostPause = 30 * time.Second
)

// web is how files are read from servers. Safe for concurrent use.
type web struct {
	client   *http.Client
	patience time.Duration   // for a connection, an answer, or the next bytes of one
	pauses   []time.Duration // before the second try of a request that failed, the third, …

	mu      sync.Mutex
	buckets map[string]*bucket
}

func newWeb() *web {
	w := &web{
		patience: 30 * time.Second,
		pauses:   []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second},
		buckets:  map[string]*bucket{},
	}
	w.client = &http.Client{
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout:    10 * time.Second,
			ResponseHeaderTimeout:  w.patience,
			IdleConnTimeout:        w.patience,
			MaxConnsPerHost:        mostConnections,
			MaxIdleConnsPerHost:    mostConnections,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true,
			ForceAttemptHTTP2:      true,
		},
		CheckRedirect: follow,
	}
	return w
}

func (w *web) close() { w.client.CloseIdleConnections() }

// follow says which redirects are followed.
func follow(req *http.Request, via []*http.Request) error {
	first := via[0]
	switch {
	case len(via) >= 10:
		return errServer("it is redirected more than ten times")
	case first.Header.Get("Authorization") != "" && first.Header.Get("X-Amz-Date") != "":
		return http.ErrUseLastResponse // the signature is for this address alone
	case first.URL.Scheme == "https" && req.URL.Scheme != "https":
		return errServer("the server redirects from https to what is not")
	}
	req.Header.Del("Referer") // it may have a secret query
	return nil
}

// remote is a file that a server has. It is an io.ReaderAt, safe for concurrent
// use. What it reads is of the version of the file that it was opened on.
type remote struct {
	web    *web
	name   string   // without secrets
	url    *url.URL // with them; nil: in a bucket
	bucket *bucket
	key    string // in the bucket

	size     int64
	etag     string // "": the server gives none
	modified time.Time

	changed  atomic.Bool
	answered atomic.Int64 // when the server last gave bytes of this version, UnixNano

	requests atomic.Int64

	mu         sync.Mutex
	opening    bool
	head, tail []byte // kept while it is opened
}

// errStatus is an answer that is no success.
type errStatus struct {
	code int
	what string        // of S3, its word for what is wrong; "": none
	wait time.Duration // that the server asks for
}

func (e *errStatus) Error() string {
	text := fmt.Sprintf("the server answers %d %s", e.code, http.StatusText(e.code))
	if e.what != "" {
		text += " (" + e.what + ")"
	}
	return strings.TrimSpace(text)
}

func (e *errStatus) Unwrap() error {
	switch e.code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return syscall.EACCES
	case http.StatusNotFound, http.StatusGone:
		return iofs.ErrNotExist
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return syscall.ETIMEDOUT
	}
	return errRemoteIO
}

// errServer is about a server that does not do what is needed of it; trying
// again does not help.
type errServer string

func (e errServer) Error() string { return string(e) }
func (e errServer) Unwrap() error { return errRemoteIO }

const errNoRanges = errServer("this server sends whole files alone, not ranges of them; download the file, then mount the copy")

// openRemote asks the server for the file's beginning, and so for what it is.
func (w *web) openRemote(ctx context.Context, name string) (*remote, error) {
	r := &remote{web: w, name: PlainName(name), size: -1, opening: true}
	if bucket, key, ok := cutS3(name); ok {
		if key == "" || strings.HasSuffix(key, "/") {
			return nil, errServer("this names no file; hipofs takes the *.hipo of such a folder where it is a word of the command line")
		}
		r.bucket, r.key = w.bucket(bucket), key
	} else {
		u, err := url.Parse(name)
		if err != nil || u.Host == "" { // the error has the address, with its secrets
			return nil, errServer("not an address that can be understood")
		}
		u.Fragment = ""
		r.url = u
	}
	head := make([]byte, endBytes)
	n, err := r.try(ctx, head, 0)
	if err != nil {
		return nil, err
	}
	r.head = head[:n]
	return r, nil
}

// private says whether the file was read with something that not everybody has.
func (r *remote) private() bool {
	if r.bucket != nil {
		return r.bucket.signs()
	}
	return r.url.User != nil || r.url.RawQuery != ""
}

// identity has a hash of the entity tag in the place of an inode's number.
func (r *remote) identity() identity {
	id := identity{size: r.size}
	if !r.modified.IsZero() {
		id.mtime = r.modified.UnixNano()
	}
	if r.etag != "" {
		id.ino = xxh3.HashString(r.etag)
	}
	return id
}

// remoteInfo is what stat would give of the file.
type remoteInfo struct{ r *remote }

func (i remoteInfo) Name() string { return i.r.name }
func (i remoteInfo) Size() int64  { return i.r.size }
func (i remoteInfo) IsDir() bool  { return false }
func (i remoteInfo) Sys() any {
	return &syscall.Stat_t{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}
}
func (i remoteInfo) Mode() iofs.FileMode {
	if i.r.private() {
		return 0o400
	}
	return 0o444
}

func (i remoteInfo) ModTime() time.Time {
	if i.r.modified.IsZero() {
		return time.Unix(0, 0)
	}
	return i.r.modified
}

// opened forgets what was kept of the file's ends.
func (r *remote) opened() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opening, r.head, r.tail = false, nil, nil
}

// look asks the server whether the file is still the one, unless it has said so
// a moment ago.
func (r *remote) look(ctx context.Context) error {
	if time.Since(time.Unix(0, r.answered.Load())) < looksHold || r.size == 0 {
		return nil
	}
	var b [1]byte
	_, err := r.try(ctx, b[:], 0)
	return err
}

// readAt fills p, as far as the file goes.
func (r *remote) readAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off >= r.size {
		return 0, io.EOF
	}
	want := p[:min(int64(len(p)), r.size-off)]
	n, ok, err := r.fromEnds(ctx, want, off)
	if !ok && err == nil {
		n, err = r.try(ctx, want, off)
	}
	if err == nil && len(want) < len(p) {
		err = io.EOF
	}
	return n, err
}

// fromEnds reads while the file is opened, if that is about its beginning or end.
func (r *remote) fromEnds(ctx context.Context, p []byte, off int64) (n int, ok bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	end, have := off+int64(len(p)), int64(len(r.head))
	if off < have && end > have && end <= mostHead { // a dictionary that is longer
		head := append(r.head, make([]byte, end-have)...)
		if _, err := r.try(ctx, head[have:], have); err != nil {
			return 0, false, err
		}
		r.head, have = head, end
	}
	if end <= have {
		return copy(p, r.head[off:]), true, nil
	}
	from := max(0, r.size-endBytes)
	if !r.opening || off < from {
		return 0, false, nil
	}
	if r.tail == nil {
		tail := make([]byte, r.size-from)
		if _, err := r.try(ctx, tail, from); err != nil {
			return 0, false, err
		}
		r.tail = tail
	}
	return copy(p, r.tail[off-from:]), true, nil
}

// try asks for the bytes from off on, again if need be, and goes on where an
// answer broke off.
func (r *remote) try(ctx context.Context, p []byte, off int64) (int, error) {
	n := 0
	for try := 0; ; try++ {
		if r.changed.Load() {
			return n, ErrChanged
		}
		if r.size >= 0 {
			p = p[:min(int64(len(p)), r.size-off)]
		}
		m, err := r.get(ctx, p[n:], off+int64(n))
		if m >= progress {
			try = 0
		}
		n += m
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, ErrChanged):
			r.changed.Store(true)
			return n, err
		case ctx.Err() != nil:
			return n, ctx.Err()
		case final(err) || r.size < 0 && errors.Is(err, syscall.ECONNREFUSED) || try >= len(r.web.pauses):
			return n, err
		}
		pause := r.web.pauses[try]
		if status, ok := errors.AsType[*errStatus](err); ok {
			pause = max(pause, min(status.wait, mostPause))
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return n, ctx.Err()
		}
	}
}

// final reports whether trying again cannot help.
func final(err error) bool {
	if status, ok := errors.AsType[*errStatus](err); ok {
		switch status.code {
		case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
			return false
		}
		return status.code < 500 || status.code == http.StatusNotImplemented
	}
	_, server := errors.AsType[errServer](err)
	_, dns := errors.AsType[*net.DNSError](err)
	return server || dns && !temporaryDNS(err)
}

func temporaryDNS(err error) bool {
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && (dns.IsTemporary || dns.IsTimeout)
}

// withoutAddress is an error of the client, without the address in it and what
// may be secret there.
func withoutAddress(err error) error {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		return fmt.Errorf("the server does not answer in time: %w", syscall.ETIMEDOUT)
	}
	if strings.ContainsAny(err.Error(), "?@") { // an address that the server has given
		return errServer("the server redirects to what is no address")
	}
	return err
}

// get asks once for the bytes from off on; for those of a file that is being
// opened, as many as there are.
func (r *remote) get(ctx context.Context, p []byte, off int64) (n int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A server that sends a byte now and then is as good as silent.
	slow := time.AfterFunc(r.web.patience+time.Duration(len(p)/(8<<10))*time.Second, func() { cancel(errSlow) })
	defer slow.Stop()
	silent := time.AfterFunc(2*r.web.patience, func() { cancel(errSlow) }) // with connecting
	defer silent.Stop()
	defer func() {
		if err != nil && context.Cause(ctx) == errSlow {
			err = errSlow
		}
	}()

	resp, err := r.ask(ctx, off, int64(len(p)))
	if err != nil {
		return 0, withoutAddress(err)
	}
	defer resp.Body.Close()
	length, err := r.understand(resp, off, int64(len(p)))
	if err != nil {
		return 0, err
	}
	p = p[:length]
	for n < len(p) {
		silent.Reset(r.web.patience)
		m, err := resp.Body.Read(p[n:])
		n += m
		if err == io.EOF && n < len(p) {
			return n, fmt.Errorf("the answer ends after %d of %d bytes: %w", n, len(p), io.ErrUnexpectedEOF)
		}
		if err != nil && err != io.EOF {
			return n, err
		}
	}
	var more [1]byte
	if m, _ := resp.Body.Read(more[:]); m > 0 { // and at the end the connection is free for the next
		return 0, errServer("the server sends more than it was asked for")
	}
	r.answered.Store(time.Now().UnixNano())
	return n, nil
}

var errSlow = fmt.Errorf("the server does not answer in time: %w", syscall.ETIMEDOUT)

// ask sends the request for n bytes from off on.
func (r *remote) ask(ctx context.Context, off, n int64) (*http.Response, error) {
	r.requests.Add(1)
	header := http.Header{
		"Range":           {fmt.Sprintf("bytes=%d-%d", off, off+n-1)},
		"Accept-Encoding": {"identity"},
		"User-Agent":      {"hipofs"},
	}
	if r.etag != "" && !strings.HasPrefix(r.etag, "W/") { // a weak tag matches nothing
		header.Set("If-Match", r.etag)
	}
	if r.bucket != nil {
		return r.bucket.get(ctx, r.key, nil, header)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url.String(), nil)
	if err != nil {
		return nil, errServer("not an address that can be understood")
	}
	req.Header = header
	return r.web.client.Do(req)
}

// understand looks whether an answer is what was asked for, and gives how many
// bytes it has. The first answer says what the file is.
func (r *remote) understand(resp *http.Response, off, n int64) (int64, error) {
	first := r.size < 0
	switch resp.StatusCode {
	case http.StatusPartialContent:
	case http.StatusOK:
		if !first && !r.same(resp.Header) {
			return 0, ErrChanged
		}
		return 0, errNoRanges
	case http.StatusPreconditionFailed:
		return 0, ErrChanged
	case http.StatusRequestedRangeNotSatisfiable:
		if !first {
			return 0, ErrChanged
		}
		if resp.Header.Get("Content-Range") == "bytes */0" {
			r.settle(resp.Header, 0)
			return 0, nil
		}
		return 0, errNoRanges
	case http.StatusNotFound, http.StatusGone:
		if !first {
			return 0, fmt.Errorf("the server has it no more: %w", ErrChanged)
		}
		return 0, statusOf(resp)
	default:
		return 0, statusOf(resp)
	}
	if coding := resp.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return 0, errServer("the server compresses what it sends, so that no range of the file itself can be had; download the file, then mount the copy")
	}
	from, length, size, ok := parseContentRange(resp.Header.Get("Content-Range"))
	switch {
	case !ok:
		return 0, errServer("the server sends a part of the file, and does not say which")
	case first:
		n = min(n, size)
	case size != r.size || !r.same(resp.Header):
		return 0, ErrChanged
	}
	if from != off || length != n {
		return 0, errServer(fmt.Sprintf("the server sends bytes %d to %d where %d to %d were asked for", from, from+length-1, off, off+n-1))
	}
	if resp.ContentLength >= 0 && resp.ContentLength != n {
		return 0, fmt.Errorf("the server announces %d bytes for a range of %d: %w", resp.ContentLength, n, io.ErrUnexpectedEOF)
	}
	if first {
		r.settle(resp.Header, size)
	}
	return n, nil
}

// settle notes what version of the file is read from now on.
func (r *remote) settle(h http.Header, size int64) {
	r.etag, r.modified, r.size = h.Get("Etag"), lastModified(h), size
}

// same reports whether an answer is of the version that the file was opened on.
func (r *remote) same(h http.Header) bool {
	if r.etag != "" {
		return h.Get("Etag") == r.etag
	}
	return lastModified(h).Equal(r.modified)
}

func lastModified(h http.Header) time.Time {
	t, err := http.ParseTime(h.Get("Last-Modified"))
	if err != nil {
		return time.Time{}
	}
	return t
}

// parseContentRange takes "bytes FROM-TO/SIZE" apart.
func parseContentRange(s string) (from, length, size int64, ok bool) {
	rest, unit := strings.CutPrefix(s, "bytes ")
	span, total, slash := strings.Cut(rest, "/")
	first, last, dash := strings.Cut(span, "-")
	if !unit || !slash || !dash {
		return 0, 0, 0, false
	}
	var n [3]int64
	for i, text := range []string{first, last, total} {
		v, err := strconv.ParseUint(text, 10, 62)
		if err != nil {
			return 0, 0, 0, false
		}
		n[i] = int64(v)
	}
	if n[1] < n[0] || n[1] >= n[2] {
		return 0, 0, 0, false
	}
	return n[0], n[1] - n[0] + 1, n[2], true
}

// statusOf makes an error of an answer that is no success.
func statusOf(resp *http.Response) error {
	e := &errStatus{code: resp.StatusCode}
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 16<<10))
	if m := s3Code.FindSubmatch(b); m != nil {
		e.what = string(m[1])
	}
	after := resp.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(after, 10, 16); err == nil {
		e.wait = time.Duration(seconds) * time.Second
	} else if t, err := http.ParseTime(after); err == nil {
		e.wait = max(0, time.Until(t))
	}
	return e
}

var s3Code = regexp.MustCompile(`<Code>([A-Za-z0-9]{1,64})</Code>`)
