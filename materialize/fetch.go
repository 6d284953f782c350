package materialize

// ToFetch is how many files of the chain that servers have are not counted, and
// about how many bytes the passes over them will read.
func (c *Chain) ToFetch() (files, bytes int64) {
	for _, s := range c.sources {
		if s.handle.remote == nil || s.index.Load() != nil || s.isCounted() {
			continue
		}
		files++
		for i := range s.file.Records {
			h := &s.file.Records[i]
			if h.Split() {
				bytes += min(h.Length, headGuess)
			} else {
				bytes += h.Length
			}
		}
	}
	return files, bytes
}

// headGuess is how much is fetched of a split record whose directory's length is
// not known: most are shorter.
const headGuess = 64 << 10
