package fs

import (
	"bytes"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/hipofs/hipofs/materialize"
)

// metric is a number of Stats as Prometheus is told it.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*Stats) float64
}

func counter(name, help string, value func(*Stats) float64) metric {
	return metric{prometheus.NewDesc("hipofs_"+name, help, nil, nil), prometheus.CounterValue, value}
}

func gauge(name, help string, value func(*Stats) float64) metric {
	return metric{prometheus.NewDesc("hipofs_"+name, help, nil, nil), prometheus.GaugeValue, value}
}

var metrics = []metric{
	counter("records_decoded_total", "Records inflated, or directories of split records read.", func(s *Stats) float64 { return float64(s.RecordsDecoded) }),
	counter("streams_decoded_total", "Streams of split records inflated.", func(s *Stats) float64 { return float64(s.StreamsDecoded) }),
	counter("source_bytes_read_total", "Bytes read from the sources.", func(s *Stats) float64 { return float64(s.BytesRead) }),
	counter("bytes_inflated_total", "Bytes that records inflated to.", func(s *Stats) float64 { return float64(s.BytesInflated) }),
	counter("bytes_served_total", "Bytes of columns handed to the kernel.", func(s *Stats) float64 { return float64(s.BytesServed) }),
	counter("cache_hits_total", "Chunks of columns that were in memory.", func(s *Stats) float64 { return float64(s.CacheHits) }),
	counter("cache_misses_total", "Chunks of columns that were waited for.", func(s *Stats) float64 { return float64(s.CacheMisses) }),
	counter("cache_evictions_total", "Chunks that had to go.", func(s *Stats) float64 { return float64(s.CacheEvictions) }),
	counter("cache_evicted_bytes_total", "Bytes of chunks that had to go.", func(s *Stats) float64 { return float64(s.CacheBytesEvicted) }),
	gauge("cache_bytes", "Bytes of columns in memory.", func(s *Stats) float64 { return float64(s.CacheBytes) }),
	gauge("cache_budget_bytes", "What may be in memory of columns.", func(s *Stats) float64 { return float64(s.CacheBudget) }),
	gauge("decodes_in_flight", "Decodes under way.", func(s *Stats) float64 { return float64(s.DecodesInFlight) }),
	gauge("decodes_stalled", "Decodes under way whose source hangs.", func(s *Stats) float64 { return float64(s.DecodesStalled) }),
	counter("decode_seconds_total", "Time in decodes, reading included, over all threads.", func(s *Stats) float64 { return s.DecodeSeconds }),
	counter("wait_seconds_total", "Time that readers have waited.", func(s *Stats) float64 { return s.WaitSeconds }),
	gauge("readers_waiting", "Readers who wait.", func(s *Stats) float64 { return float64(len(s.Waiting)) }),
	gauge("files", "Files of the chain.", func(s *Stats) float64 { return float64(s.Files) }),
	gauge("files_counted", "Files whose rows are counted.", func(s *Stats) float64 { return float64(s.FilesCounted) }),
	gauge("counting_bytes", "Bytes of all records.", func(s *Stats) float64 { return float64(s.Counting.Bytes) }),
	gauge("counting_done_bytes", "Bytes of records whose rows are counted.", func(s *Stats) float64 { return float64(s.Counting.BytesDone) }),
	gauge("prefetch_bytes", "Bytes of columns to prefetch.", func(s *Stats) float64 { return float64(s.Prefetch.Bytes) }),
	gauge("prefetch_done_bytes", "Bytes of columns prefetched.", func(s *Stats) float64 { return float64(s.Prefetch.BytesDone) }),
	counter("tier_opens_total", "Opens of columns that were in the cache folder.", func(s *Stats) float64 { return float64(s.tier().Opens) }),
	counter("tier_made_total", "Columns put into the cache folder.", func(s *Stats) float64 { return float64(s.tier().Made) }),
	counter("tier_bad_total", "Columns in the cache folder that had a wrong checksum.", func(s *Stats) float64 { return float64(s.tier().Bad) }),
	counter("tier_evicted_total", "Columns that had to leave the cache folder.", func(s *Stats) float64 { return float64(s.tier().Evicted) }),
	gauge("tier_bytes", "Bytes in the cache folder, as last counted.", func(s *Stats) float64 { return float64(s.tier().Used) }),
	gauge("tier_size_bytes", "What the cache folder may hold.", func(s *Stats) float64 { return float64(s.tier().Size) }),
	counter("passthrough_opens_total", "Opens of columns that the kernel reads by itself.", func(s *Stats) float64 { return float64(s.Passthrough.Opens) }),
	gauge("errors", "Distinct errors so far.", func(s *Stats) float64 { return float64(s.Errors) }),
	gauge("source_descriptors", "Sources that are open.", func(s *Stats) float64 { return float64(s.OpenSources) }),
	gauge("descriptors", "Open descriptors.", func(s *Stats) float64 { return float64(s.OpenDescriptors) }),
	gauge("goroutines", "Goroutines.", func(s *Stats) float64 { return float64(s.Goroutines) }),
	gauge("resident_bytes", "Resident memory.", func(s *Stats) float64 { return float64(s.ResidentBytes) }),
	gauge("mounted_timestamp_seconds", "When it was mounted.", func(s *Stats) float64 {
		return float64(s.Mounted.UnixNano()) / float64(time.Second)
	}),
}

// tier is what there is to say of a cache folder; nothing without one.
func (s *Stats) tier() materialize.TierStats {
	if s.Tier == nil {
		return materialize.TierStats{}
	}
	return *s.Tier
}

var infoDesc = prometheus.NewDesc("hipofs_info", "The version that serves the mount.", []string{"version"}, nil)

// snapshot hands one Stats to a registry.
type snapshot Stats

var _ = (prometheus.Collector)((*snapshot)(nil))

func (s *snapshot) Describe(to chan<- *prometheus.Desc) {
	to <- infoDesc
	for _, m := range metrics {
		to <- m.desc
	}
}

func (s *snapshot) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.MustNewConstMetric(infoDesc, prometheus.GaugeValue, 1, s.Version)
	for _, m := range metrics {
		to <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value((*Stats)(s)))
	}
}

// metricsText is Stats in Prometheus' text format, version 0.0.4.
func metricsText(s Stats) ([]byte, error) {
	registry := prometheus.NewRegistry()
	if err := registry.Register((*snapshot)(&s)); err != nil {
		return nil, err
	}
	families, err := registry.Gather()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	encoder := expfmt.NewEncoder(&b, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, family := range families {
		if err := encoder.Encode(family); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}
