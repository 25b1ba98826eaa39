{{/* The workload of a tier: (dict "root" $ "component" "gps" "replicas" 1). `kind` is StatefulSet by default. */}}
{{- define "fedstrata.workload" -}}
{{- $root := .root -}}
{{- $kind := .kind | default "StatefulSet" -}}
{{- $name := printf "%s-%s" (include "fedstrata.fullname" $root) .component -}}
apiVersion: apps/v1
kind: {{ $kind }}
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace | quote }}
  labels:
    {{- include "fedstrata.labels" . | nindent 4 }}
    {{- include "fedstrata.queueLabel" $root | nindent 4 }}
spec:
  {{- if eq $kind "StatefulSet" }}
  replicas: {{ .replicas }}
  serviceName: {{ $name }}
  podManagementPolicy: Parallel
  {{- end }}
  {{- include "fedstrata.updateStrategy" (dict "root" $root "kind" $kind) | nindent 2 }}
  selector:
    matchLabels:
      {{- include "fedstrata.selectorLabels" . | nindent 6 }}
  template:
    {{- include "fedstrata.podTemplate" . | nindent 4 }}
  {{- with .claims }}
  {{- . | trim | nindent 2 }}
  {{- end }}
{{- end }}

{{/* A new experiment replaces all pods at once. Before Kubernetes 1.24 a StatefulSet replaces them one by one. */}}
{{- define "fedstrata.updateStrategy" -}}
updateStrategy:
  type: RollingUpdate
  {{- if or (eq .kind "DaemonSet") (include "fedstrata.since" (dict "root" .root "version" "1.24")) }}
  rollingUpdate:
    maxUnavailable: 100%
  {{- end }}
{{- end }}
