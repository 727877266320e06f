#!/bin/sh
# The first process of the container: when it ends, everything in the container is killed. So it is
# not the server itself: should that crash, its media workers still tell their callers.
set -u

voice_agent=${VOICE_AGENT_BIN:-/app/.venv/bin/voice-agent}
goodbye_s=${VOICE_AGENT_GOODBYE_S:-5}

"$voice_agent" "$@" &
server=$!
trap 'kill -TERM "$server" 2>/dev/null' TERM
trap 'kill -INT "$server" 2>/dev/null' INT
trap 'kill -HUP "$server" 2>/dev/null' HUP

# A signal that is passed on interrupts `wait`: only a server that is gone has a status of its own.
while :; do
    wait "$server"
    status=$?
    kill -0 "$server" 2>/dev/null || break
done

# Its media workers end their calls and then themselves.
left=$((goodbye_s * 10))
while [ "$left" -gt 0 ] && grep -qs -a 'gateway\.workers' /proc/[0-9]*/cmdline; do
    sleep 0.1
    left=$((left - 1))
done
exit "$status"
