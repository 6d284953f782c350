// Package fs shows a chain of HIPO files as a file system: a folder for each
// bank, a .npy file for each column, and .hipofs for what the mount knows about
// itself. Mount attaches it to a directory.
//
// Every name follows from the dictionary, so folders are made when they are
// looked up and listings never wait; a file's size follows from row counts, so
// the first look at it may wait for the pass that counts them. Bytes come from
// package materialize. Nothing here decodes, and nothing here is written.
//
// An error stays an error up to border, which logs it once and tells the kernel
// a number. Damage is met when a file is looked at or opened, not when it is
// read: a read that fails under a memory mapping kills the reader.
package fs
