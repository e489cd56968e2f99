# Runs a Postgres cluster for as long as standard input is open, then removes its folder. The lines that come in are
# commands; the end of the input, which is also the end of the process that holds the other end, is the last one.
#
# $1 folder  $2 folder of programs  $3... arguments of postgres
root=$1 bin=$2
shift 2
# Nothing may end this script before the input does. PIPE: the process that reads our output may be gone while we still
# write, in the middle of initdb say.
trap '' INT TERM HUP PIPE

# $root/running is there from before the server is started until it is known to have ended, with its process id as soon as
# there is one. So a signal never goes to a process that merely has the same id.
#
# end sends a signal until the server has ended: one that has only just been started does not listen to signals yet. CONT:
# one that is frozen never would.
end() {
	while [ -e "$root/running" ]; do
		pid=$(cat "$root/running" 2>/dev/null)
		if [ -n "$pid" ]; then
			kill -"$1" "$pid" 2>/dev/null
			kill -CONT "$pid" 2>/dev/null
		fi
		sleep 0.02
	done
	wait
}

while read -r command argument; do
	case $command in
	start)
		if [ -e "$root/running" ]; then
			echo "failed: the server runs already"
			continue
		fi
		if [ ! -e "$root/initialized" ] && [ -e "$root/primary" ]; then
			PGPASSWORD=$(cat "$root/password") "$bin/pg_basebackup" -D "$root/data" -d "$(cat "$root/primary")" -R -c fast --no-sync \
				>"$root/initdb.log" 2>&1 </dev/null && : >"$root/initialized" ||
				{ rm -rf "$root/data"; echo "failed: pg_basebackup did not succeed"; continue; }
		elif [ ! -e "$root/initialized" ]; then
			"$bin/initdb" -D "$root/data" -U postgres -A scram-sha-256 --pwfile="$root/password" -E UTF8 --locale=C --no-sync \
				>"$root/initdb.log" 2>&1 </dev/null && : >"$root/initialized" || { echo "failed: initdb did not succeed"; continue; }
		fi
		: >"$root/running" || { echo "failed: $root cannot be written to"; continue; }
		(
			"$bin/postgres" -D "$root/data" -p "$argument" "$@" >"$root/server.log" 2>&1 </dev/null &
			echo $! >"$root/running"
			echo "started $!"
			wait
			rm -f "$root/running"
			echo exited
		) &
		;;
	stop) end "$argument" ;;
	esac
done

end QUIT
# A server that was killed leaves shared memory outside of the folder. The next one on the same data frees it.
if [ -e "$root/data/postmaster.pid" ]; then
	rm -f "$root/data/standby.signal" # which a server without a postmaster refuses
	"$bin/postgres" --single -D "$root/data" "$@" postgres >"$root/server.log" 2>&1 </dev/null
fi
rm -rf "$root"
