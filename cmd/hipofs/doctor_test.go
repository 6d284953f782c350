package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestKernelVersionsAreRead(t *testing.T) {
	for _, tt := range []struct {
		release  string
		new, old bool // since 6.9, since 4.5
	}{
		{"6.18.44-0-virt", true, true},
		{"6.9.0", true, true},
		{"6.8.0-45-generic", false, true},
		{"7.0.0-rc1", true, true},
		{"5.14.0-427.el9.x86_64", false, true},
		{"4.18.0-553.el8_10.x86_64", false, true},
		{"4.5-arch", false, true},
		{"3.10.0-1160.el7.x86_64", false, false},
		{"plan 9", false, false},
	} {
		v := parseKernel(tt.release)
		if v.since(6, 9) != tt.new || v.since(4, 5) != tt.old {
			t.Errorf("%s: read as %d.%d", tt.release, v.major, v.minor)
		}
	}
}

func TestFuseConfLetsOthersInByAWordOfItsOwn(t *testing.T) {
	for _, tt := range []struct {
		conf string
		want bool
	}{
		{"", false},
		{"# The file /etc/fuse.conf\n#user_allow_other\n", false}, // as Debian ships it
		{"#mount_max = 1000\nuser_allow_other\n", true},
		{"  user_allow_other  # for the group\n", true},
		{"user_allow_other", true},
		{"user_allow_others\n", false},
		{"mount_max = 1000\n", false},
	} {
		if got := allowsOther(tt.conf); got != tt.want {
			t.Errorf("%q: %v", tt.conf, got)
		}
	}
}

func TestOnlyTheFirstUserNamespaceOwnsTheMachine(t *testing.T) {
	for _, tt := range []struct {
		uidMap string
		want   bool
	}{
		{"         0          0 4294967295\n", true},
		{"         0       1000          1\n", false},                                   // unshare -r
		{"         0       1000          1\n         1     100000      65536\n", false}, // podman
		{"      1000       1000          1\n", false},
		{"", false},
	} {
		if got := isFirstUserNamespace(tt.uidMap); got != tt.want {
			t.Errorf("%q: %v", tt.uidMap, got)
		}
	}
}

func TestANamespaceOfOursMapsOneUserToItself(t *testing.T) {
	for _, tt := range []struct {
		uidMap string
		want   bool
	}{
		{"      1000       1000          1\n", true},
		{"         0          0          1\n", true},
		{"         0          0 4294967295\n", false},
		{"         0       1000          1\n         1     100000      65536\n", false},
		{"", false},
	} {
		if got := mapsOne(tt.uidMap); got != tt.want {
			t.Errorf("%q: %v", tt.uidMap, got)
		}
	}
}

// The files below /proc are what kernels show where namespaces are forbidden.
func TestForbiddenNamespacesHaveTheirRemedy(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		err   error
		want  []string
	}{
		{"sysctl", map[string]string{"sys/user/max_user_namespaces": "0\n"}, unix.ENOSPC,
			[]string{"user.max_user_namespaces is 0; ", "sysctl -w user.max_user_namespaces="}},
		{"debian", map[string]string{"sys/user/max_user_namespaces": "63508\n", "sys/kernel/unprivileged_userns_clone": "0\n"}, unix.EPERM,
			[]string{"sysctl -w kernel.unprivileged_userns_clone=1"}},
		{"ubuntu", map[string]string{"sys/user/max_user_namespaces": "63508\n", "sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}, unix.EACCES,
			[]string{"AppArmor", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"}},
		{"container", map[string]string{"sys/user/max_user_namespaces": "63508\n", "self/status": "Name:\thipofs\nNoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n"}, unix.EPERM,
			[]string{"operation not permitted", "--cap-add SYS_ADMIN --device /dev/fuse"}},
		{"all in use", map[string]string{"sys/user/max_user_namespaces": "3\n", "self/status": "Seccomp:\t0\n", "self/ns/user": ""}, unix.ENOSPC,
			[]string{"as many as", "sysctl -w user.max_user_namespaces="}},
		{"old kernel", map[string]string{"self/status": "Name:\thipofs\n"}, unix.EINVAL,
			[]string{"no user namespaces", `"hipofs mount"`}},
		{"unknown", map[string]string{"self/ns/user": ""}, errors.New("who knows"),
			[]string{"who knows", "; "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			proc := t.TempDir()
			for name, text := range tt.files {
				path := filepath.Join(proc, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got := whyNoNamespaces(proc, tt.err)
			for _, part := range tt.want {
				if !strings.Contains(got, part) {
					t.Errorf("%q is without %q", got, part)
				}
			}
			if strings.Contains(got, "\n") {
				t.Errorf("%q is more than a line", got)
			}
		})
	}
}

func TestAFolderThatIsNotThereYetIsJudgedByTheOneAboveIt(t *testing.T) {
	dir := t.TempDir()
	want, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	got, err := nearestFolder(filepath.Join(dir, "not", "there", "yet"))
	if err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "not")); err == nil {
		t.Error("it has been made")
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{file, filepath.Join(file, "below")} {
		if f := folderFinding("index folder", name, "--index-dir"); f.State != stateWarn || !strings.Contains(f.Remedy, "--index-dir") {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestSizesAreTold(t *testing.T) {
	for _, tt := range []struct {
		n    int64
		want string
	}{
		{0, "0 B"}, {1023, "1023 B"}, {1024, "1.0 KiB"}, {150 << 20, "150 MiB"}, {5 << 30, "5.0 GiB"}, {1 << 62, "4096 PiB"},
	} {
		if got := sizeText(tt.n); got != tt.want {
			t.Errorf("%d: %s, want %s", tt.n, got, tt.want)
		}
	}
}
