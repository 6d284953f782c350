// Package hipotest builds small HIPO files, whole ones and broken ones, for
// the tests of every package.
//
// A File is plain data: schemas, records, events, structures. Its zero fields
// give what format.md's writer's recipe asks for, so a test states only what is
// unusual about its file. Bytes returns the file; Build returns it with the
// offset of each part, so that a test can overwrite a number with a lie.
// What lies inside a compressed body cannot be patched afterwards: the hooks of
// Record (Payload, Directory, Section, Stream) change it before it is stored.
//
// The package shares no code with the reader: a mistake in one of them cannot
// hide in the other. A File that contradicts itself makes it panic.
package hipotest
