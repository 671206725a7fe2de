{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- define "nodeagent.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "nodeagent.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "nodeagent.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "nodeagent.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "nodeagent.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "nodeagent.selector" -}}
app.kubernetes.io/name: {{ include "nodeagent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nodeagent.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "nodeagent.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: device-plugin
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "nodeagent.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "nodeagent.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "nodeagent.configMap" -}}
{{- default (printf "%s-config" (include "nodeagent.fullname" .)) .Values.existingConfigMap -}}
{{- end -}}

{{- /* The settings, without the sections that are there but empty. */ -}}
{{- define "nodeagent.config" -}}
{{- $kept := dict -}}
{{- range $key, $value := .Values.config -}}
{{- if not (kindIs "invalid" $value) }}{{- $_ := set $kept $key $value -}}{{- end -}}
{{- end -}}
{{- toYaml $kept -}}
{{- end -}}

{{- /* "true" if nodeagent makes and removes devices, else "". */ -}}
{{- define "nodeagent.changes" -}}
{{- $config := include "nodeagent.config" . | fromYaml -}}
{{- if eq (toString .Values.changes) "auto" -}}
{{- if or (dig "mdevs" "manage" false $config) (dig "kubevirt" "manageMdevs" false $config) (dig "sriov" list $config) (dig "passthrough" list $config) -}}true{{- end -}}
{{- else if .Values.changes -}}true{{- end -}}
{{- end -}}

{{- /* "true" if the nodes of USB devices get another owner, else "". */ -}}
{{- define "nodeagent.usb" -}}
{{- if eq (toString .Values.usb) "auto" -}}
{{- $found := false -}}
{{- range dig "resources" list (include "nodeagent.config" . | fromYaml) -}}
{{- if .usb }}{{- $found = true -}}{{- end -}}
{{- end -}}
{{- if $found -}}true{{- end -}}
{{- else if .Values.usb -}}true{{- end -}}
{{- end -}}

{{- /* "true" if devices are advertised by DRA, else "". */ -}}
{{- define "nodeagent.dra" -}}
{{- if eq (toString .Values.dra.enabled) "auto" -}}
{{- if ne (include "nodeagent.draResources" .) "" -}}true{{- end -}}
{{- else if .Values.dra.enabled -}}true{{- end -}}
{{- end -}}

{{- /* The names of the resources of config that are advertised by DRA, one a line. */ -}}
{{- define "nodeagent.draResources" -}}
{{- $names := list -}}
{{- range dig "resources" list (include "nodeagent.config" . | fromYaml) -}}
{{- if eq (default "" .via) "dra" }}{{- $names = append $names .name -}}{{- end -}}
{{- end -}}
{{- $names | uniq | join "\n" -}}
{{- end -}}

{{- /* The name of the DRA driver. */ -}}
{{- define "nodeagent.draDriver" -}}
{{- default (dig "dra" "driver" "nodeagent.local" (include "nodeagent.config" . | fromYaml)) .Values.dra.driver -}}
{{- end -}}

{{- /* The name of the DeviceClass of a resource. */ -}}
{{- define "nodeagent.deviceClass" -}}
{{ regexReplaceAll "[^a-z0-9]+" (base . | lower) "-" | trimAll "-" }}.{{ dir . }}
{{- end -}}

{{- /* The capabilities that it needs, as a list. */ -}}
{{- define "nodeagent.capabilities" -}}
{{- $added := list -}}
{{- if include "nodeagent.changes" . }}{{- $added = concat $added (list "SYS_PTRACE" "DAC_READ_SEARCH") -}}{{- end -}}
{{- if include "nodeagent.usb" . }}{{- $added = append $added "CHOWN" -}}{{- end -}}
{{- dict "add" $added | toYaml -}}
{{- end -}}

{{- /* "true" if the KubeVirt CR and the Node are followed, else "". */ -}}
{{- define "nodeagent.cluster" -}}
{{- $enabled := dig "kubevirt" "enabled" "auto" (include "nodeagent.config" . | fromYaml) | toString -}}
{{- if ne $enabled "false" -}}true{{- end -}}
{{- end -}}

{{- /* "true" if CDI files are written: for a resource with CDI names, or for claims; else "". */ -}}
{{- define "nodeagent.cdi" -}}
{{- $found := ne (include "nodeagent.dra" .) "" -}}
{{- range dig "resources" list (include "nodeagent.config" . | fromYaml) -}}
{{- if .cdi }}{{- $found = true -}}{{- end -}}
{{- end -}}
{{- if $found -}}true{{- end -}}
{{- end -}}

{{- /* "true" if a resource of config is of devices that CDI files of other tools describe, else "". */ -}}
{{- define "nodeagent.cdiDevices" -}}
{{- $found := false -}}
{{- range dig "resources" list (include "nodeagent.config" . | fromYaml) -}}
{{- if .cdiDevices }}{{- $found = true -}}{{- end -}}
{{- end -}}
{{- if $found -}}true{{- end -}}
{{- end -}}

{{- /* The part of the host's /dev that is mounted. */ -}}
{{- define "nodeagent.hostDev" -}}
{{- $dev := ternary "/dev" "/dev/vfio" (ne (include "nodeagent.changes" .) "") -}}
{{- range dig "resources" list (include "nodeagent.config" . | fromYaml) -}}
{{- if or .node .cdiDevices (has .iommufd (list "auto" "only")) }}{{- $dev = "/dev" -}}{{- end -}}
{{- end -}}
{{- ternary $dev .Values.hostDev (eq .Values.hostDev "auto") -}}
{{- end -}}

{{- /* Fails where values contradict each other. */ -}}
{{- define "nodeagent.check" -}}
{{- $config := include "nodeagent.config" . | fromYaml -}}
{{- if and .Values.existingConfigMap (ne (len (keys $config)) 1) -}}
{{- fail "config and existingConfigMap are both given\nwrite all settings into one of them" -}}
{{- end -}}
{{- $classes := dict -}}
{{- range $name := splitList "\n" (include "nodeagent.draResources" .) -}}
{{- $class := include "nodeagent.deviceClass" $name -}}
{{- if hasKey $classes $class -}}
{{- fail (printf "%s and %s would have the same DeviceClass %s\nrename one of them, or set dra.deviceClasses: false" (get $classes $class) $name $class) -}}
{{- end -}}
{{- if $.Values.dra.deviceClasses }}{{- $_ := set $classes $class $name -}}{{- end -}}
{{- end -}}
{{- if and .Values.dra.driver (not .Values.existingConfigMap) -}}
{{- fail "dra.driver is given without existingConfigMap\nset instead: config.dra.driver" -}}
{{- end -}}
{{- $by := dict "http.listen" "http.host and http.port" "node.name" "nothing: it is the node's own name" -}}
{{- range $key := list "devicePluginDir" "pluginsRegistryDir" "podResources" -}}
{{- $_ := set $by (printf "kubelet.%s" $key) "kubeletRoot" -}}
{{- end -}}
{{- $_ := set $by "status.socket" "nothing: only /run/nodeagent can be written to" -}}
{{- $_ := set $by "cdi.specDir" "nothing: /var/run/cdi is mounted where a resource has cdi: true" -}}
{{- range $key, $instead := $by -}}
{{- $parts := splitList "." $key -}}
{{- if not (kindIs "invalid" (dig (index $parts 0) (index $parts 1) nil $config)) -}}
{{- fail (printf "config.%s does not go with what the pod mounts and serves\nset instead: %s" $key $instead) -}}
{{- end -}}
{{- end -}}
{{- end -}}
