package materialize

import (
	"context"
	"testing"

	"github.com/hipofs/hipofs/hipo/hipotest"
)

// An event of a file that nobody has counted costs its record, once, and is the
// same in every view that has it.
func TestEventIsDecodedOnceFromItsRecordAlone(t *testing.T) {
	ctx := context.Background()
	for _, codec := range []int{1, 7, 10} {
		c := many(t, 1000, codec)
		ev, err := c.Event(ctx, 252)
		if err != nil {
			t.Fatal(err)
		}
		if n := c.Stats().RecordsDecoded; codec == 1 && n != 1 {
			t.Errorf("%d records decoded for one event", n)
		}
		equal(t, "place", []int64{ev.Entry, int64(ev.Record), int64(ev.Number), int64(ev.Tag), ev.RecordTag}, []int64{252, 50, 2, 2, 0})
		equal(t, "banks", len(ev.Banks), 2)
		equal(t, "pid", ev.Banks[0].Columns[0].Content, hipotest.Pack([]int32{756, 757, 758}))
		equal(t, "track", ev.Banks[1].Name, "REC::Track")
		other, err := where(t, c.View().Slice(Slice{200, 300}), "require=REC::Track").Slice(Slice{2, 3}).Event(ctx)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "the event of a view", *other, *ev)
	}
	if _, err := many(t, 2, 1).Event(ctx, 10); err == nil {
		t.Error("there is an entry 10 of 10")
	}
}
