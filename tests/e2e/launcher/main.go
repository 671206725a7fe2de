// SPDX-License-Identifier: Apache-2.0

// Command launcher shows which devices KubeVirt's virt-launcher would attach to a virtual machine. For
// resource names it reads the environment of this container, for claims the metadata files of the DRA
// driver. It runs KubeVirt's own code and adds nothing to it but the printing.
//
//	launcher hostDevices example.com/gpu example.com/gpu   one entry of the VMI per argument
//	launcher gpus nvidia.com/t4
//	launcher claims vm/gpu shared=shared-gpu/gpu           ENTRY/REQUEST of a template's claim,
//	                                                       ENTRY=CLAIM/REQUEST of a claim by name
//
// Prints the list of <hostdev> elements. Exit code 1 and KubeVirt's text on stderr if it would refuse.
package main

import (
	"encoding/xml"
	"fmt"
	"os"
	"strings"

	v1 "kubevirt.io/api/core/v1"

	drautil "kubevirt.io/kubevirt/pkg/dra"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/api"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/device/hostdevice/dra"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/device/hostdevice/generic"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/device/hostdevice/gpu"
)

type devices struct {
	XMLName xml.Name         `xml:"devices"`
	Devices []api.HostDevice `xml:"hostdev"`
}

func main() {
	if len(os.Args) < 3 {
		fail("usage: launcher hostDevices|gpus RESOURCE... | claims ENTRY[=CLAIM]/REQUEST...")
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
	case "claims":
		return dra.CreateDRAHostDevices(withClaims(resources), drautil.DefaultMetadataBasePath)
	}
	return nil, fmt.Errorf("%s: give hostDevices, gpus or claims", list)
}

// withClaims is a VMI with one host device for each argument, and the claims that they name.
func withClaims(arguments []string) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{}
	known := map[string]bool{}
	for index, argument := range arguments {
		reference, request, _ := strings.Cut(argument, "/")
		entry, claim, direct := strings.Cut(reference, "=")
		if !known[entry] {
			known[entry] = true
			wanted := v1.VirtualMachineInstanceResourceClaim{Name: entry}
			if direct {
				wanted.ResourceClaimName = &claim
			}
			vmi.Spec.ResourceClaims = append(vmi.Spec.ResourceClaims, wanted)
		}
		vmi.Spec.Domain.Devices.HostDevices = append(vmi.Spec.Domain.Devices.HostDevices, v1.HostDevice{
			Name:         fmt.Sprintf("device%d", index),
			ClaimRequest: &v1.ClaimRequest{ClaimName: entry, RequestName: request},
		})
	}
	return vmi
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, text)
	os.Exit(1)
}
