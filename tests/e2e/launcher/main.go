// SPDX-License-Identifier: Apache-2.0

// Command launcher shows which devices KubeVirt's virt-launcher would attach to a virtual machine,
// judging by the environment that the device plugin has given to this container. It runs KubeVirt's own
// code and adds nothing to it but the printing.
//
//	launcher hostDevices example.com/gpu example.com/gpu   one entry of the VMI per argument
//	launcher gpus nvidia.com/t4
//
// Prints the list of <hostdev> elements. Exit code 1 and KubeVirt's text on stderr if it would refuse.
package main

import (
	"encoding/xml"
	"fmt"
	"os"

	v1 "kubevirt.io/api/core/v1"

	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/api"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/device/hostdevice/generic"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/device/hostdevice/gpu"
)

type devices struct {
	XMLName xml.Name         `xml:"devices"`
	Devices []api.HostDevice `xml:"hostdev"`
}

func main() {
	if len(os.Args) < 3 {
		fail("usage: launcher hostDevices|gpus RESOURCE...")
	}
	found, err := create(os.Args[1], os.Args[2:])
	if err != nil {
		fail(err.Error())
	}
	text, err := xml.MarshalIndent(devices{Devices: found}, "", "  ")
	if err != nil {
		fail(err.Error())
	}
	fmt.Println(string(text))
}

func create(list string, resources []string) ([]api.HostDevice, error) {
	switch list {
	case "hostDevices":
		var wanted []v1.HostDevice
		for index, resource := range resources {
			wanted = append(wanted, v1.HostDevice{Name: fmt.Sprintf("device%d", index), DeviceName: resource})
		}
		return generic.CreateHostDevices(wanted)
	case "gpus":
		var wanted []v1.GPU
		for index, resource := range resources {
			wanted = append(wanted, v1.GPU{Name: fmt.Sprintf("gpu%d", index), DeviceName: resource})
		}
		return gpu.CreateHostDevices(wanted)
	}
	return nil, fmt.Errorf("%s: give hostDevices or gpus", list)
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, text)
	os.Exit(1)
}
