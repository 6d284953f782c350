package fs

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/hipofs/hipofs/materialize"
)

func TestNamesInJSONAreTrue(t *testing.T) {
	for _, tt := range []struct{ name, want string }{
		{"REC::Particle", `"REC::Particle"`},
		{"", `""`},
		{"a<b>&\"\\\n", `"a<b>&\"\\\n"`},
		{"é\ufffd", `"é` + "\ufffd" + `"`}, // U+FFFD itself is UTF-8
		{"\xff", `"\udcff"`},
		{"a\x80é\xc3", `"a\udc80é\udcc3"`},
	} {
		b, err := toJSON(struct {
			Name trueText `json:"name"`
		}{trueText(tt.name)})
		if want := "{\n  \"name\": " + tt.want + "\n}\n"; err != nil || string(b) != want {
			t.Errorf("%q: %s (%v), not %s", tt.name, b, err, want)
		}
	}
}

func TestFormIsWhatAwkwardReads(t *testing.T) {
	b := &materialize.Bank{Name: "A::b", Columns: []*materialize.Column{
		{Name: "px", Type: "F", Length: 1, Dtype: "<f4"},
		{Name: "cov", Type: "D", Length: 3, Dtype: "<f8"},
		{Name: "offsets", Type: "B", Length: 1, Dtype: "|i1"},
		{Name: "px", Type: "L", Length: 1, Dtype: "<i8"},
	}}
	got, err := json.Marshal(formOf(columnFiles(naming{}, b)))
	want := `{"class":"ListOffsetArray","offsets":"i64","content":{"class":"RecordArray","fields":["px","cov","offsets","px~2"],"contents":[` +
		`{"class":"NumpyArray","primitive":"float32","form_key":"px.npy"},` +
		`{"class":"RegularArray","size":3,"content":{"class":"NumpyArray","primitive":"float64","form_key":"cov.npy"}},` +
		`{"class":"NumpyArray","primitive":"int8","form_key":"%6Fffsets.npy"},` +
		`{"class":"NumpyArray","primitive":"int64","form_key":"px~2.npy"}]},"form_key":"offsets.npy"}`
	if err != nil || string(got) != want {
		t.Errorf("%s\nnot\n%s (%v)", got, want, err)
	}
	if empty, _ := json.Marshal(formOf(nil)); !strings.Contains(string(empty), `"fields":[],"contents":[]`) {
		t.Errorf("no columns: %s", empty)
	}
}
