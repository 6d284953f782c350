package materialize

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// noSettings keeps the settings and credentials of who runs the tests out.
func noSettings(t *testing.T) {
	t.Helper()
	for _, name := range []string{
		"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE",
		"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_WEB_IDENTITY_TOKEN_FILE",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
	} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

func TestAddressesInBuckets(t *testing.T) {
	for _, tt := range []struct{ endpoint, region, name, want string }{
		{"", "", "s3://runs/a b/run+1.hipo", "https://runs.s3.us-east-1.amazonaws.com/a%20b/run%2B1.hipo"},
		{"", "eu-west-1", "s3://my.runs/run.hipo", "https://s3.eu-west-1.amazonaws.com/my.runs/run.hipo"},
		{"", "cn-north-1", "s3://runs/run.hipo", "https://runs.s3.cn-north-1.amazonaws.com.cn/run.hipo"},
		{"http://localhost:9000", "", "s3://runs/x?y#z.hipo", "http://localhost:9000/runs/x%3Fy%23z.hipo"},
		{"http://localhost:9000/s3/", "", "s3://runs//a//ü.hipo", "http://localhost:9000/s3/runs//a//%C3%BC.hipo"},
	} {
		noSettings(t)
		t.Setenv("AWS_ENDPOINT_URL", tt.endpoint)
		t.Setenv("AWS_REGION", tt.region)
		bucket, key, ok := cutS3(tt.name)
		if !ok {
			t.Fatal(tt.name)
		}
		b := hasty(t).bucket(bucket)
		equal(t, tt.name, b.address(b.region, key).String(), tt.want)
	}
}

func TestABucketSaysInWhichRegionItIs(t *testing.T) {
	noSettings(t)
	content := telling(1000)
	var signatures []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		auth := r.Header.Get("Authorization")
		signatures = append(signatures, auth)
		w.Header().Set("X-Amz-Bucket-Region", "eu-west-1")
		if !strings.Contains(auth, "/eu-west-1/s3/aws4_request") {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(content)-1, len(content)))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(content)
	}))
	defer s.Close()
	t.Setenv("AWS_ENDPOINT_URL", s.URL)
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	r, err := hasty(t).openRemote(t.Context(), "s3://runs/run.hipo")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "size", r.size, 1000)
	equal(t, "private", r.private(), true)
	equal(t, "requests", len(signatures), 2)
}

func TestAListIsReadToItsEnd(t *testing.T) {
	noSettings(t)
	pages := map[string]string{
		"": `<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><EncodingType>url</EncodingType>
			<IsTruncated>true</IsTruncated><NextContinuationToken>two+/=</NextContinuationToken>
			<Contents><Key>a/</Key></Contents><Contents><Key>a/run+%2B10.hipo</Key></Contents><Contents><Key>a/notes.txt</Key></Contents></ListBucketResult>`,
		"two+/=": `<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a/.run.hipo</Key></Contents>
			<Contents><Key>a/b/run.hipo</Key></Contents><Contents><Key>else/run.hipo</Key></Contents><Contents><Key>a/run2.hipo</Key></Contents></ListBucketResult>`,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.URL.Path != "/runs/" || q.Get("list-type") != "2" || q.Get("prefix") != "a/" || q.Get("delimiter") != "/" {
			w.WriteHeader(400)
			return
		}
		_, _ = w.Write([]byte(pages[q.Get("continuation-token")]))
	}))
	defer s.Close()
	t.Setenv("AWS_ENDPOINT_URL", s.URL)
	names, err := ListRemote(t.Context(), "s3://runs/a/")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "names", fmt.Sprint(names), "[s3://runs/a/run +10.hipo s3://runs/a/run2.hipo]")
	pages["two+/="] = pages[""]
	if _, err := ListRemote(t.Context(), "s3://runs/a/"); err == nil || !strings.Contains(err.Error(), "has no end") {
		t.Errorf("%v of a list that goes on for ever", err)
	}
}

func FuzzListing(f *testing.F) {
	f.Add([]byte(`<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%20b.hipo</Key></Contents></ListBucketResult>`))
	f.Add([]byte(`<ListBucketResult><IsTruncated>true</IsTruncated>`))
	f.Add([]byte(xml.Header))
	f.Fuzz(func(t *testing.T, b []byte) {
		page, err := parseListing(b)
		if (page == nil) == (err == nil) {
			t.Errorf("%v, %v", page, err)
		}
	})
}
