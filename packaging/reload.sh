#!/bin/sh
# Units have come, changed or gone.
[ ! -d /run/systemd/system ] || systemctl daemon-reload || true
