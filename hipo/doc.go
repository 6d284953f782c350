// Package hipo reads HIPO files.
package hipo
