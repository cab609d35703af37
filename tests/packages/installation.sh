# Run in a container by the test: installs the package, upgrades, removes and purges it.
set -eE
exec 2>&1
export DEBIAN_FRONTEND=noninteractive
at=start
trap 'echo "failed in step: $at (line $LINENO)"; journalctl --no-pager -u throng | tail -40' ERR
step() { at="$*"; echo "== $*"; }
fails() { ! "$@"; }
second=$(echo /packages/throng_99.0_*.deb)
first=$(find /packages -name 'throng_*.deb' -not -path "$second")
laboratory=$(echo /packages/throng-lab_*.deb)
pid() { systemctl show --property MainPID --value throng; }
# `systemctl` returns once the server has said that it is ready, so this needs no second try. Through the
# socket unit the request waits until the server has started.
healthy() { [ "$(throng health --timeout 60s "$@")" = ok ] && [ "$(systemctl is-active throng)" = active ]; }
eventually() { for _ in $(seq 300); do "$@" && return; sleep 0.1; done; return 1; }
# The journal has a line a little after the server has written it.
logged() { journalctl --no-pager -u throng | grep -q "$1"; }
status() { sed -n "s/^$1:[[:space:]]*//p" "/proc/$(pid)/status"; }

step 'install: the server runs'
dpkg -i "$first"
healthy
systemctl is-enabled throng

step 'the laboratory is a package of its own, which the server finds'
throng flood --help 2>&1 | grep -q 'throng-lab'
dpkg -i "$laboratory"
throng flood --help | grep -q 'Usage: throng flood'
throng bench | grep -q c10k
dpkg -r throng-lab
fails command -v throng-flood

step 'it is the user throng, and may do little'
user=$(id -u throng)
[ "$(status Uid | cut -f1)" = "$user" ]
[ "$(status CapEff)" = 0000000000000400 ]
[ "$(status CapBnd)" = 0000000000000400 ]
[ "$(status NoNewPrivs)" = 1 ]
[ "$(status Seccomp)" = 2 ]
[ "$(stat -c '%U %G %a' /etc/throng.toml)" = 'root throng 640' ]
[ "$(stat -c '%U %G' /var/lib/throng)" = 'throng throng' ]
fails nsenter -t "$(pid)" -m touch /etc/written

step 'what its workers need is allowed'
if [ "$(cat /proc/sys/kernel/io_uring_disabled 2>/dev/null || echo 2)" = 0 ]; then
    eventually logged 'capacity '
    fails logged 'cannot be used'
fi

step 'the operator sets a port below 1024'
echo 'listen = "127.0.0.1:81"' >>/etc/throng.toml
sed -i 's/^#docs = /docs = /' /etc/throng.toml
systemctl restart throng
healthy --config /etc/throng.toml
healthy --url http://127.0.0.1:81
curl --silent --fail --noproxy '*' http://127.0.0.1:81/docs/ >/tmp/docs.html
grep -q '<title>Throng' /tmp/docs.html

step 'reload keeps the process'
before=$(pid)
systemctl reload throng
healthy --url http://127.0.0.1:81
[ "$(pid)" = "$before" ]

step 'upgrade with a changed configuration file'
dpkg -i --force-confold "$second"
grep -q '^listen = "127.0.0.1:81"' /etc/throng.toml
grep -q 'a later version' /etc/throng.toml.dpkg-dist
[ "$(pid)" != "$before" ]
healthy --url http://127.0.0.1:81
[ "$(stat -c '%U %G %a' /etc/throng.toml)" = 'root throng 640' ]

step 'without the right to raise limits, as in containers'
mkdir -p /etc/systemd/system/throng.service.d
cat >/etc/systemd/system/throng.service.d/limits.conf <<'UNIT'
[Service]
LimitNOFILE=1024
WatchdogSec=4
# What the default profiles of container engines refuse.
SystemCallFilter=~unshare io_uring_setup io_uring_enter io_uring_register
Environment=THRONG_MAX_CONNECTIONS=2000
UNIT
systemctl daemon-reload
systemctl restart throng
healthy --url http://127.0.0.1:81
eventually logged 'io_uring cannot be used'
grep -q '^Max open files *1024 *1024 ' "/proc/$(pid)/limits"

step 'the watchdog is fed by a server that runs, and restarts one that does not'
fed() { systemctl show --property WatchdogTimestampMonotonic --value throng; }
first_fed=$(fed) before=$(pid)
later() { [ "$(fed)" != "$first_fed" ]; }
eventually later
[ "$(pid)" = "$before" ]
kill -STOP "$before"
restarted() { [ "$(systemctl show --property NRestarts --value throng)" = 1 ]; }
eventually restarted
again() { systemctl is-active --quiet throng && [ "$(pid)" != "$before" ]; }
eventually again
rm -r /etc/systemd/system/throng.service.d
systemctl daemon-reload

systemctl reset-failed throng
step 'wrong settings: the reason is in the log, and it is not tried again'
cp -a /etc/throng.toml /var/tmp/throng.toml
echo 'no-such-setting = 1' >>/etc/throng.toml
fails systemctl restart throng
eventually logged 'no-such-setting'
[ "$(systemctl show --property NRestarts --value throng)" = 0 ]
systemctl reset-failed throng
cp -a /var/tmp/throng.toml /etc/throng.toml
systemctl start throng
healthy --url http://127.0.0.1:81

step 'it can be installed again after a stop by its operator, and stays as it was'
systemctl disable --now throng
dpkg -i --force-confold "$second"
fails systemctl is-enabled throng
systemctl enable --now throng

step 'the first connection starts the server, through the socket unit'
systemctl disable --now throng.service
mkdir -p /etc/systemd/system/throng.socket.d
printf '[Socket]\nListenStream=\nListenStream=127.0.0.1:81\n' >/etc/systemd/system/throng.socket.d/port.conf
systemctl daemon-reload
systemctl enable --now throng.socket
fails systemctl is-active --quiet throng.service
healthy --url http://127.0.0.1:81

step 'the socket stays while the server restarts, and through an upgrade'
before=$(pid)
systemctl restart throng.service
healthy --url http://127.0.0.1:81
fails kill -0 "$before"
before=$(pid)
dpkg -i --force-confold "$second"
systemctl is-active --quiet throng.socket
healthy --url http://127.0.0.1:81
[ "$(pid)" != "$before" ]
systemctl stop throng.service
healthy --url http://127.0.0.1:81

step 'remove: the server is gone, the settings stay'
last=$(pid)
dpkg -r throng
fails kill -0 "$last"
fails command -v throng
fails systemctl is-active --quiet throng.socket
[ -e /etc/throng.toml ] && [ -d /var/lib/throng ]
fails systemctl cat throng

step 'install again: the settings hold'
# As after a removal of the socket's settings by its operator.
systemctl disable throng.socket 2>/dev/null || true
rm -r /etc/systemd/system/throng.socket.d
dpkg -i "$second"
systemctl enable --now throng.service
healthy --url http://127.0.0.1:81

step 'purge: nothing stays but the user'
dpkg -P throng
[ ! -e /etc/throng.toml ] && [ ! -e /var/lib/throng ]
[ -z "$(find /etc -name '*throng*' -not -name 'throng.toml.dpkg-*')" ]
fails dpkg -s throng
id throng

echo 'all steps passed'
