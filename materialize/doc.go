// Package materialize turns a chain of HIPO files into columns: plain .npy
// bytes that can be read from any offset.
//
// A Chain is the given files in order, read as one, also files that a server has.
// A View is what a tree shows: the whole chain, one file of it, or some entries of
// another view. A View has Banks, a Bank has Columns, and a Column answers Size,
// Open and ReadAt; Arrow is a bank as one file. Lengths are bytes, rows or
// entries, as the names say.
//
// What is made of a chain beside that: Export writes banks as files, Skim a new
// HIPO file; Folder.Pack makes one of arrays; Summarize and Event are for people.
// Index saves what a pass has found out about each file, for the next mount, and
// Check looks for damage. With a cache folder, finished columns stay as plain
// files; Cache looks after such a folder.
//
// Row counts are not known before a pass over the data has counted them:
// whatever takes a context may wait for that pass, and gives up with the
// context's error when its caller does. An error that is not a context's is
// about the data and says file, record and byte.
//
// Everything exported is safe for concurrent use.
package materialize
