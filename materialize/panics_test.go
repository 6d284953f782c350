package materialize

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// panicking is a log that panics when it is told something.
type panicking struct {
	slog.Handler
	at string
}

func (p panicking) Handle(ctx context.Context, r slog.Record) error {
	if strings.Contains(r.Message, p.at) {
		panic("as told")
	}
	return p.Handler.Handle(ctx, r)
}

// A bug that a file brings out, wherever it is, is an error of those who need
// what it was to make, with its stack in the log; everything else goes on.
func TestPanicAnywhereIsAnErrorOfItsReaders(t *testing.T) {
	ctx := context.Background()
	for _, tt := range []struct {
		where string
		tag   int // of the records
		at    string
		do    func(c *Chain, col *Column, armed *atomic.Bool) error
		again bool // what failed works the next time
	}{
		{"decode of a pass", 1, "", func(_ *Chain, col *Column, armed *atomic.Bool) error {
			armed.Store(true)
			defer armed.Store(false)
			_, err := col.Size(ctx)
			return err
		}, false},
		{"end of a pass", 1, "counts anew", func(_ *Chain, col *Column, _ *atomic.Bool) error {
			_, err := col.Size(ctx)
			return err
		}, false},
		{"decode for a reader", 9, "", func(_ *Chain, col *Column, armed *atomic.Bool) error {
			if _, err := col.Size(ctx); err != nil {
				return err
			}
			armed.Store(true)
			defer armed.Store(false)
			_, err := col.ReadAt(ctx, make([]byte, 8), 128)
			return err
		}, true},
		{"flight of a decode", 9, "", func(c *Chain, col *Column, _ *atomic.Bool) error {
			if _, err := col.Size(ctx); err != nil {
				return err
			}
			c.m.mu.Lock()
			c.m.launch(c.sources[0], chunkKey{0, 0, col.bank.id, 0}, c.m.chainWants, func(context.Context, *source, chunkKey, *flight) { panic("as told") })
			c.m.mu.Unlock()
			_, err := col.ReadAt(ctx, make([]byte, 8), 128)
			return err
		}, true},
		{"verification of streams", 9, "", func(c *Chain, col *Column, _ *atomic.Bool) error {
			if _, err := col.Size(ctx); err != nil {
				return err
			}
			return c.sources[0].verifyColumn(ctx, columnKey{col.bank.id, 99})
		}, true},
		{"prefetching", 1, "no column is called", func(c *Chain, _ *Column, _ *atomic.Bool) error {
			return c.guard(func() error { return c.prefetch([]string{"NO::such"}) })
		}, true},
	} {
		t.Run(tt.where, func(t *testing.T) {
			name, want := large(t, tt.tag)
			other, _ := large(t, 10)
			var said logged
			c := newChain(slog.New(panicking{slog.NewTextHandler(&said, nil), tt.at}))
			if tt.at == "" {
				c = newChain(said.logger())
			}
			if tt.at == "counts anew" {
				c.indexDir = filepath.Join(name, "no", "folder")
			}
			var armed atomic.Bool
			c.progress = func(int64) {
				if armed.Load() {
					panic("as told")
				}
			}
			if err := c.open(ctx, []string{name, other}, Options{Index: IndexLazy}, 2); err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			col := bank(t, c.View().File(0), "T::b0").Columns[0]
			if err := tt.do(c, col, &armed); !errors.Is(err, errPanic) {
				t.Errorf("error %v", err)
			}
			if s := said.String(); !strings.Contains(s, "internal error: panic") || !strings.Contains(s, "stack=") {
				t.Errorf("no stack in the log: %s", s)
			}
			if n := len(c.Waiting()); n > 0 && tt.where != "verification of streams" {
				t.Errorf("%d wait", n)
			}
			got, err := serve(col)
			if tt.again && (err != nil || string(got) != string(want["T::b0/i"])) {
				t.Errorf("afterwards: %d bytes, %v", len(got), err)
			} else if !tt.again && !errors.Is(err, errPanic) {
				t.Errorf("what could not be counted is served: %v", err)
			}
			if tt.at == "" {
				readAll(t, bank(t, c.View().File(1), "T::b1").Columns[1])
			}
		})
	}
}
