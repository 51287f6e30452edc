#!/bin/sh
# The first process of a node out of namespaces; 'unshare' has made them. Arguments: folder of the node, folder of the
# shared image, name, address with its length, gateway. Every step must succeed: one that is passed over would start the
# machine's own sshd on its own files.
set -eu
folder=$1 lower=$2 name=$3 address=$4 gateway=$5
capabilities=chown,dac_override,fowner,fsetid,kill,net_bind_service,setfcap,setgid,setpcap,setuid,sys_chroot,audit_write,net_raw

echo ready # whoever gives this node its interface needs its network namespace first
read -r word
test "$word" = go # the end of the input is the end of the maker
exec >"$folder/log" 2>&1 </dev/null

hostname "$name"
ip -batch - <<END
link set lo up
address add $address dev eth0
link set eth0 up
route add default via $gateway
END

cd "$folder"
mount -t overlay -o "lowerdir=$lower,upperdir=upper,workdir=work" overlay root
cd root
mount -t proc -o nosuid,nodev,noexec proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys # its settings are those of the machine
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
mount -t tmpfs -o nosuid,mode=755,size=64k tmpfs dev
mknod -m 666 dev/null c 1 3
mknod -m 666 dev/zero c 1 5
mknod -m 666 dev/full c 1 7
mknod -m 666 dev/random c 1 8
mknod -m 666 dev/urandom c 1 9
mknod -m 666 dev/tty c 5 0
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o nosuid,nodev,mode=1777,size=1g tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
mount -t tmpfs -o nosuid,nodev,mode=755,size=16m tmpfs run

pivot_root . mnt
cd /
umount -l /mnt
bounding=-all
for capability in $(echo "$capabilities" | tr , ' '); do bounding=$bounding,+$capability; done
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    setpriv --inh-caps=-all --bounding-set="$bounding" /usr/local/sbin/node-start
