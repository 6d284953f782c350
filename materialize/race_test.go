//go:build race

package materialize

const raceDetector = true // it takes memory of its own, many times what it watches
