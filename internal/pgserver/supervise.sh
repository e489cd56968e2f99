# Runs a Postgres cluster for as long as standard input is open, then removes its folder. The lines that come in are
# commands; the end of the input, which is also the end of the process that holds the other end, is the last one.
#
# $1 folder  $2 folder of programs  $3... arguments of postgres
root=$1 bin=$2
shift 2
trap '' INT TERM HUP

# end stops the server by a signal. It may have to be sent again: a server that has only just been started has not yet said
# which process it is. The file that says so is believed only until the server is known to have ended.
end() {
	while [ -n "$started" ] && [ ! -e "$root/exited" ]; do
		kill -"$1" "$(head -n 1 "$root/data/postmaster.pid" 2>/dev/null)" 2>/dev/null
		sleep 0.05
	done
	wait
}

started=
while read -r command port; do
	case $command in
	start)
		if [ ! -e "$root/data/PG_VERSION" ]; then
			"$bin/initdb" -D "$root/data" -U postgres -A password --pwfile="$root/password" -E UTF8 --locale=C --no-sync \
				>"$root/initdb.log" 2>&1 </dev/null || { echo "initdb failed"; continue; }
		fi
		rm -f "$root/exited"
		(
			trap - INT TERM HUP
			"$bin/postgres" -D "$root/data" -p "$port" "$@" >>"$root/server.log" 2>&1 </dev/null
			touch "$root/exited"
			echo exited
		) &
		started=yes
		echo started
		;;
	stop) end "$port" ;;
	esac
done

end QUIT
rm -rf "$root"
