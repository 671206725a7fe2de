// SPDX-License-Identifier: Apache-2.0
/*
 * A driver of the host that does not let go of its function while it is told to hold it: whoever unbinds it
 * sleeps in the kernel, and no signal ends that. Takes QEMU's pci-testdev, which has no driver of its own.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/pci.h>

static bool hold;
module_param(hold, bool, 0644);

static int stubborn_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	return 0;
}

static void stubborn_remove(struct pci_dev *pdev)
{
	while (READ_ONCE(hold))
		msleep(20);
}

static const struct pci_device_id stubborn_ids[] = {
	{ PCI_DEVICE(0x1b36, 0x0005) },
	{ }
};

static struct pci_driver stubborn_driver = {
	.name = "stubborn",
	.id_table = stubborn_ids,
	.probe = stubborn_probe,
	.remove = stubborn_remove,
};
module_pci_driver(stubborn_driver);

MODULE_DESCRIPTION("a driver that holds its function for as long as it is told to");
MODULE_LICENSE("Apache-2.0");
