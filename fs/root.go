package fs

import (
	fusefs "github.com/hanwen/go-fuse/v2/fs"

	"github.com/hipofs/hipofs/materialize"
)

const rootIno = 1

func newRoot(chain *materialize.Chain, o Options) fusefs.InodeEmbedder {
	return &fusefs.Inode{}
}
