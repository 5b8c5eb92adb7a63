# Turns the directory $1 into the root of the namespaces that this runs in, as a machine that has just been installed
# has it, and stays there as its first process. Devices are the system's own, so that nothing done to them is the host's.
set -eu
root=$1
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
device() { mknod -m 666 "$root/dev/$1" c "$2" "$3"; }
device null 1 3 && device zero 1 5 && device full 1 7 && device random 1 8 && device urandom 1 9 && device tty 5 0
device loop-control 10 237 && device fuse 10 229
mkdir "$root/dev/pts" "$root/dev/shm" "$root/dev/net"
device net/tun 10 200
ln -s pts/ptmx "$root/dev/ptmx" && ln -s /proc/self/fd "$root/dev/fd"
ln -s fd/0 "$root/dev/stdin" && ln -s fd/1 "$root/dev/stdout" && ln -s fd/2 "$root/dev/stderr"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ip link set lo up
hostname fresh
mkdir "$root/.host"
cd "$root"
# Not chroot: whoever is in one may make no user namespace.
pivot_root . .host
umount -l /.host
rmdir /.host
echo ready
while :; do # bash reaps what is left to it
    sleep 100000 &
    wait $!
done
