//go:build race

package hipo_test

const raceDetector = true
