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

{{- /* "true" if nodeagent makes and removes devices, else "". */ -}}
{{- define "nodeagent.changes" -}}
{{- if eq (toString .Values.changes) "auto" -}}
{{- if or (dig "mdevs" "manage" false .Values.config) (dig "sriov" list .Values.config) -}}true{{- end -}}
{{- else if .Values.changes -}}true{{- end -}}
{{- end -}}

{{- /* "true" if a resource of config is answered with CDI names, else "". */ -}}
{{- define "nodeagent.cdi" -}}
{{- range dig "resources" list .Values.config -}}
{{- if .cdi -}}true{{- end -}}
{{- end -}}
{{- end -}}
