// Package hipo reads HIPO files, version 6.
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
// A File may be shared by goroutines. A Record may not, and what it hands out
// lives until it is read into again.
package hipo
