# Lists the gates that run the installed program, or the one that was installed before, by process id. Not those of containers;
# nor `gate top` and the like, which are no daemons.
gates() {
	for process in /proc/[0-9]*; do
		# Most are not, and need no look at their program.
		name=
		read -r name 2>/dev/null <"$process/comm" || true
		[ "$name" = gate ] || continue
		case "$(readlink "$process/exe" 2>/dev/null)" in
		/usr/bin/gate | "/usr/bin/gate (deleted)") ;;
		*) continue ;;
		esac
		if [ "$process/root" -ef / ] && [ "$(tr '\0' '\n' <"$process/cmdline" | sed -n 2p)" = run ]; then
			echo "${process#/proc/}"
		fi
	done
}
