//go:build !race

package materialize

const raceDetector = false
