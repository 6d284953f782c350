package materialize

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
	"github.com/minio/minio-go/v7/pkg/signer"
)

// Of the S3 protocol two requests are needed, and net/http makes them. Signing
// and the search for credentials are the library's; all of a vendor's kit would
// make every mount larger by several megabytes.

// bucket is an S3 bucket. Safe for concurrent use.
type bucket struct {
	web      *web
	name     string
	endpoint *url.URL // nil: Amazon's
	wrong    error    // what the settings have wrong

	find        sync.Once
	credentials *credentials.Credentials

	mu     sync.Mutex
	region string
	signed bool
}

// cutS3 takes "s3://BUCKET/KEY" apart.
func cutS3(name string) (bucket, key string, ok bool) {
	rest, ok := strings.CutPrefix(PlainName(name), "s3://")
	if !ok || !IsRemote(name) {
		return "", "", false
	}
	bucket, key, _ = strings.Cut(rest, "/")
	return bucket, key, true
}

// bucket gives the bucket of that name, by the settings in the environment.
func (w *web) bucket(name string) *bucket {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b := w.buckets[name]; b != nil {
		return b
	}
	b := &bucket{web: w, name: name, region: cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), "us-east-1")}
	if s3utils.CheckValidBucketNameStrict(name) != nil {
		b.wrong = errServer("not the name of a bucket")
	}
	if text := cmp.Or(os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL")); text != "" {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			b.wrong = errServer("AWS_ENDPOINT_URL is not an address of http or https")
		}
		b.endpoint = u
	}
	w.buckets[name] = b
	return b
}

// address is where a key is. Other servers than Amazon's have buckets in the
// path, and names with a dot fit no certificate.
func (b *bucket) address(region, key string) *url.URL {
	var u url.URL
	path := "/" + key
	switch {
	case b.endpoint != nil:
		u = url.URL{Scheme: b.endpoint.Scheme, Host: b.endpoint.Host}
		path = strings.TrimSuffix(b.endpoint.Path, "/") + "/" + b.name + path
	case strings.Contains(b.name, "."):
		u = url.URL{Scheme: "https", Host: "s3." + region + ".amazonaws.com"}
		path = "/" + b.name + path
	default:
		u = url.URL{Scheme: "https", Host: b.name + ".s3." + region + ".amazonaws.com"}
	}
	if strings.HasPrefix(region, "cn-") && b.endpoint == nil {
		u.Host += ".cn"
	}
	u.Path, u.RawPath = path, s3utils.EncodePath(path)
	return &u
}

// signs says whether requests are signed.
func (b *bucket) signs() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.signed
}

// get asks for an object or, by query, for a list. A bucket that is in another
// region says in which.
func (b *bucket) get(ctx context.Context, key string, query url.Values, header http.Header) (*http.Response, error) {
	if b.wrong != nil {
		return nil, b.wrong
	}
	b.mu.Lock()
	region := b.region
	b.mu.Unlock()
	for again := true; ; again = false {
		resp, err := b.send(ctx, region, key, query, header.Clone())
		if err != nil {
			return nil, err
		}
		is := resp.Header.Get("X-Amz-Bucket-Region")
		redirected := resp.StatusCode/100 == 3 || resp.StatusCode == http.StatusBadRequest || resp.StatusCode == http.StatusForbidden
		if !again || !redirected || is == "" || is == region || !plainRegion(is) {
			return resp, nil
		}
		resp.Body.Close()
		region = is
		b.mu.Lock()
		b.region = is
		b.mu.Unlock()
	}
}

// plainRegion says whether that can be a part of a host's name.
func plainRegion(s string) bool {
	return len(s) < 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func (b *bucket) send(ctx context.Context, region, key string, query url.Values, header http.Header) (*http.Response, error) {
	u := b.address(region, key)
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, errServer("not an address that can be understood")
	}
	req.URL = u
	req.Header = header
	v, err := b.who(ctx)
	if err != nil {
		return nil, errServer("the credentials for S3 cannot be had")
	}
	if v.SignerType == credentials.SignatureAnonymous || v.AccessKeyID == "" {
		return b.web.client.Do(req)
	}
	b.mu.Lock()
	b.signed = true
	b.mu.Unlock()
	const emptyPayload = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	req.Header.Set("X-Amz-Content-Sha256", emptyPayload)
	return b.web.client.Do(signer.SignV4(*req, v.AccessKeyID, v.SecretAccessKey, v.SessionToken, region))
}

// who finds credentials where Amazon's programs look for them: environment,
// ~/.aws with profiles, the machine's role.
func (b *bucket) who(ctx context.Context) (credentials.Value, error) {
	b.find.Do(func() {
		chain := []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}
		if !strings.EqualFold(os.Getenv("AWS_EC2_METADATA_DISABLED"), "true") || os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "" {
			chain = append(chain, &credentials.IAM{})
		}
		found := credentials.NewChainCredentials(chain)
		// Nobody who has none is asked about them again with each request.
		if v, err := found.GetWithContext(b.asks(ctx)); err == nil && v.AccessKeyID != "" {
			b.credentials = found
		}
	})
	if b.credentials == nil {
		return credentials.Value{SignerType: credentials.SignatureAnonymous}, nil
	}
	return b.credentials.GetWithContext(b.asks(ctx))
}

// asks is how services that give credentials are asked: those near the machine
// answer at once, or are not there.
func (b *bucket) asks(ctx context.Context) *credentials.CredContext {
	return &credentials.CredContext{Client: &http.Client{Transport: b.web.client.Transport, Timeout: 5 * time.Second}, Context: ctx}
}

// mostListed bounds what a list may hold, and mostPages how often a server may
// say that there is more.
const (
	mostListed = 1 << 20
	mostPages  = 1 << 11
)

// listing is what an answer to ListObjectsV2 says that matters here.
type listing struct {
	Contents []struct {
		Key string
	}
	EncodingType          string
	IsTruncated           bool
	NextContinuationToken string
}

// ListRemote gives the *.hipo right below a prefix of a bucket, "s3://BUCKET/PREFIX/",
// in the order of the server.
func ListRemote(ctx context.Context, name string) ([]string, error) {
	w := newWeb()
	defer w.close()
	bucket, prefix, ok := cutS3(name)
	if !ok {
		return nil, errors.New("only buckets can be listed")
	}
	b := w.bucket(bucket)
	var names []string
	token := ""
	for range mostPages {
		page, err := b.list(ctx, prefix, token)
		if err != nil {
			return nil, &SourceError{PlainName(name), withoutAddress(err)}
		}
		for _, c := range page.Contents {
			base, below := strings.CutPrefix(c.Key, prefix)
			if below && strings.HasSuffix(base, ".hipo") && !strings.HasPrefix(base, ".") && !strings.Contains(base, "/") {
				names = append(names, "s3://"+bucket+"/"+c.Key)
			}
		}
		if !page.IsTruncated {
			return names, nil
		}
		if page.NextContinuationToken == "" || page.NextContinuationToken == token || len(names) > mostListed {
			break
		}
		token = page.NextContinuationToken
	}
	return nil, &SourceError{PlainName(name), errServer("the list of this folder has no end")}
}

func (b *bucket) list(ctx context.Context, prefix, token string) (*listing, error) {
	query := url.Values{"list-type": {"2"}, "prefix": {prefix}, "delimiter": {"/"}, "encoding-type": {"url"}}
	if token != "" {
		query.Set("continuation-token", token)
	}
	for try := 0; ; try++ {
		page, err := b.listOnce(ctx, query)
		if err == nil || final(err) || ctx.Err() != nil || try >= len(b.web.pauses) {
			return page, err
		}
		t := time.NewTimer(b.web.pauses[try])
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		}
	}
}

func (b *bucket) listOnce(ctx context.Context, query url.Values) (*listing, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*b.web.patience)
	defer cancel()
	resp, err := b.get(ctx, "", query, http.Header{"User-Agent": {"hipofs"}})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, statusOf(resp)
	}
	const mostBytes = 8 << 20 // a thousand keys of a kilobyte each, escaped
	body, err := io.ReadAll(io.LimitReader(resp.Body, mostBytes))
	if err != nil {
		return nil, err
	}
	return parseListing(body)
}

// parseListing takes an answer to ListObjectsV2 apart.
func parseListing(body []byte) (*listing, error) {
	var page listing
	if err := xml.Unmarshal(body, &page); err != nil {
		return nil, errServer(fmt.Sprintf("the server's list cannot be understood (%d bytes)", len(body)))
	}
	if page.EncodingType == "url" {
		for i := range page.Contents {
			key, err := url.QueryUnescape(page.Contents[i].Key)
			if err != nil {
				return nil, errServer("the server's list has a key that cannot be understood")
			}
			page.Contents[i].Key = key
		}
	}
	return &page, nil
}
