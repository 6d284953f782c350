package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// newMan writes the man pages, one a command, for who builds packages. They are
// made of the texts that "hipofs help" prints.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "write the man pages",
		Hidden: true,
		Long:   "Usage: hipofs man DIR\n\nWrite a man page for each command to a folder.\n\nExit status: 0 done, 1 failed, 2 wrong usage.\n",
		Args:   usage(1, 1, "man wants a folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			pages := map[string]string{"hipofs": manPage("hipofs", "show HIPO files as folders of NumPy arrays", root.Long)}
			for _, c := range root.Commands() {
				if !c.Hidden && c.Name() != "help" {
					pages["hipofs-"+c.Name()] = manPage("hipofs-"+c.Name(), c.Short, c.Long)
				}
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			for name, text := range pages {
				if err := os.WriteFile(filepath.Join(args[0], name+".1"), []byte(text), 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// manPage turns a help text into roff: its usage, then paragraphs; a line with a
// colon at its end that more indented lines follow is a heading; what is
// indented stays as it is.
func manPage(name, short, help string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"hipofs %s\" \"hipofs\"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.nf\n",
		strings.ToUpper(roff(name)), roff(programVersion()), roff(name), roff(short))
	synopsis, body, _ := strings.Cut(help, "\n\n")
	for line := range strings.Lines(synopsis) {
		b.WriteString(roff(strings.TrimPrefix(strings.TrimSpace(line), "Usage: ")) + "\n")
	}
	b.WriteString(".fi\n.SH DESCRIPTION\n")
	begun := true // a section, in which a paragraph needs no break
	for part := range strings.SplitSeq(strings.TrimSpace(body), "\n\n") {
		var fixed bool
		for i, line := range strings.Split(part, "\n") {
			indented := strings.HasPrefix(line, "    ")
			heading := !indented && i == 0 && (line == "Options:" || strings.HasPrefix(line, "Exit status:") || strings.HasPrefix(line, "Commands ("))
			if indented != fixed {
				if indented && begun {
					b.WriteString(".nf\n")
				} else if indented {
					b.WriteString(".PP\n.nf\n")
				} else {
					b.WriteString(".fi\n")
				}
				fixed = indented
			} else if i == 0 && !heading && !begun {
				b.WriteString(".PP\n")
			}
			if heading {
				title, rest, _ := strings.Cut(line, ":")
				title, note, _ := strings.Cut(title, " (")
				b.WriteString(".SH " + strings.ToUpper(title) + "\n")
				if note != "" {
					rest = "(" + note
				}
				line = strings.TrimSpace(rest)
				if begun = line == ""; begun {
					continue
				}
			}
			begun = false
			if indented {
				line = line[2:]
			}
			b.WriteString(roff(line) + "\n")
		}
		if fixed {
			b.WriteString(".fi\n")
		}
	}
	return b.String()
}

// roff escapes what troff would take for its own.
func roff(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(line)
	if strings.HasPrefix(line, ".") {
		line = `\&` + line
	}
	return line
}
