package main

import (
	"github.com/spf13/cobra"
)

const completionHelp = `Usage: hipofs completion bash|zsh|fish

Print a script that makes a shell complete the commands and options of hipofs.

Exit status: 0 done, 2 wrong usage.

    $ hipofs completion bash > ~/.local/share/bash-completion/completions/hipofs
    $ hipofs completion zsh > "${fpath[1]}/_hipofs"
    $ hipofs completion fish > ~/.config/fish/completions/hipofs.fish
`

func newCompletion() *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use:       "completion bash|zsh|fish",
		Short:     "print a completion script for a shell",
		Long:      completionHelp,
		ValidArgs: shells,
		Args:      usage(1, 1, "completion wants a shell: bash, zsh or fish"),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return failure(statusUsage, "completion for %s: want bash, zsh or fish", args[0])
		},
	}
}
