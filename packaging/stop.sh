#!/bin/sh
# Before hipofs is removed, not when it is upgraded: deb says "remove", rpm says 0.
case "$1" in
remove | 0) [ ! -d /run/systemd/system ] || systemctl stop 'hipofs@*.service' || true ;;
esac
