#!/bin/sh
# What a system on a disk of its own does as its first process: as at any boot, udev is told of all devices there
# are; only then are the modules loaded that files ask for. Last comes the test's own program.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
for each in proc sysfs:sys devtmpfs:dev tmpfs:run; do
    mountpoint -q "/${each#*:}" || mount -t "${each%:*}" "${each%:*}" "/${each#*:}"
done
mount -o remount,rw /
/lib/systemd/systemd-udevd --daemon
udevadm trigger --type=subsystems --action=add
udevadm trigger --type=devices --action=add
udevadm settle --timeout=180
/lib/systemd/systemd-modules-load
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none job /job
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,ro,cache=loose root /host
sh /job/start
udevadm control --exit
sync
mount -o remount,ro /
systemctl --force --force poweroff
