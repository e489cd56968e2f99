package pgserver

import "syscall"

// inMemory returns a folder in memory that has so many bytes of room, or nothing.
//
// Tests make and remove tables by the thousand. On a disk's file system, finding a place for each
// new file took a quarter of all the time that they computed.
func inMemory(room uint64) string {
	const folder, tmpfs = "/dev/shm", 0x01021994
	var s syscall.Statfs_t
	if err := syscall.Statfs(folder, &s); err != nil || s.Type != tmpfs || s.Bavail*uint64(s.Bsize) < room {
		return ""
	}
	return folder
}
