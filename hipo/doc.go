// Package hipo reads and writes HIPO files, version 6.
//
// A file is a header, a dictionary, a run of records and a trailer; a record
// inflates to events; an event holds structures, of which the banks have a
// schema in the dictionary; a bank holds its columns one after another, each as
// long as the bank has rows. Lengths in this package are bytes, whatever the
// header counts in, and positions in a file are int64 byte offsets.
//
// Nothing here looks at a value: a column is handed out as it lies in the file.
// Every number in a file is a claim and is compared with the bytes at hand
// before it sizes or indexes anything; a claim that does not hold is a
// *FormatError that names file, record and byte.
//
// Reading: a File has the record table and the dictionary; a Record is read by
// number, and taken apart. An Outline is what opening a file has learned, to open
// it again without reading it. What begins with Audit finds what a reader passes over.
//
// Writing is the same way back: events go into a Batch, an Encoder makes records
// of it with a Codec, and a Writer a file of these, whose dictionary is a list of
// Declarations. The same events give the same bytes.
//
// A File may be shared by goroutines. A Record, a Batch, an Encoder and a Writer
// may not. What a Record hands out lives until it is read into again.
package hipo
