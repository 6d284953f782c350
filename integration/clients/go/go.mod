module hipofs/columns

go 1.26

require codeberg.org/sbinet/npyio v0.14.0

require (
	github.com/nlpodyssey/gopickle v0.3.0 // indirect
	golang.org/x/text v0.34.0 // indirect
	gonum.org/v1/gonum v0.17.0 // indirect
)
