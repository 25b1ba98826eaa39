{{/* The parts of a container that differ between tiers: arguments, environment, mounts and volumes. */}}

{{- define "fedstrata.gps.args" -}}
- --experiment=/etc/fedstrata/experiment.yaml
- --state=/state
- "--listen=[::]:{{ .Values.ports.grpc }}"
- "--http=[::]:{{ .Values.ports.http }}"
- --lps-backend=kubernetes
{{- end }}

{{- define "fedstrata.gps.env" -}}
{{- with .Values.again }}
- name: FEDSTRATA_AGAIN
  value: {{ . | quote }}
{{- end }}
- name: FEDSTRATA_JOB
  value: {{ (fromJson (include "fedstrata.run" .)).name }}
{{- if and (include "fedstrata.mayScale" .) (not (kindIs "invalid" .Values.gps.releaseAfterSeconds)) }}
- name: FEDSTRATA_RELEASE_AFTER_S
  value: {{ int .Values.gps.releaseAfterSeconds | quote }}
{{- if eq .Values.device.kind "StatefulSet" }}
- name: FEDSTRATA_DEVICE_STATEFULSET
  value: {{ include "fedstrata.fullname" . }}-device
{{- end }}
{{- end }}
- name: FEDSTRATA_LPS_STATEFULSET
  value: {{ include "fedstrata.fullname" . }}-lps
- name: FEDSTRATA_RELEASE
  value: {{ .Release.Name | quote }}
- name: FEDSTRATA_POD_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
{{- end }}

{{- define "fedstrata.gps.volumes" -}}
{{- if .Values.gps.persistence.enabled }}
- name: state
  persistentVolumeClaim:
    claimName: {{ include "fedstrata.gpsClaim" . | quote }}
{{- else }}
- name: state
  emptyDir: {sizeLimit: {{ .Values.nodeDisk.state | quote }}}
{{- end }}
{{- end }}

{{- define "fedstrata.lps.args" -}}
- --experiment=/etc/fedstrata/experiment.yaml
- --state=/state
- --gps={{ include "fedstrata.gpsAddress" . }}
- "--listen=[::]:{{ .Values.ports.grpc }}"
- --advertise={{ include "fedstrata.lpsAddress" . }}
- "--http=[::]:{{ .Values.ports.http }}"
{{- end }}

{{- define "fedstrata.lps.env" -}}{{- end }}

{{- define "fedstrata.lps.volumes" -}}
{{- include "fedstrata.stateVolume" (dict "root" . "component" "lps") }}
{{- end }}

{{- define "fedstrata.device.args" -}}
- --experiment=/etc/fedstrata/experiment.yaml
- --state=/state
- --gps={{ include "fedstrata.gpsAddress" . }}
- "--http=[::]:{{ .Values.ports.http }}"
- --stay
{{- end }}

{{- define "fedstrata.device.env" -}}
{{- if eq .Values.device.kind "DaemonSet" }}
- name: FEDSTRATA_DEVICE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- else }}
- name: FEDSTRATA_DEVICES_PER_POD
  value: {{ .Values.device.devicesPerPod | quote }}
{{- end }}
{{- if include "fedstrata.hasData" . }}
- name: FEDSTRATA_DATA
  value: {{ .Values.data.path | quote }}
{{- end }}
{{- end }}

{{/* Do devices have a data folder? With data.type none they have one only if the experiment downloads its data. */}}
{{- define "fedstrata.hasData" -}}
{{- if or (ne .Values.data.type "none") (fromJson (include "fedstrata.plan" .)).download }}true{{ end -}}
{{- end }}

{{- define "fedstrata.device.mounts" -}}
- name: state
  mountPath: /state
{{- if and (include "fedstrata.hasData" .) (ne .Values.data.type "image") }}
- name: data
  mountPath: {{ .Values.data.path | quote }}
  readOnly: {{ ne .Values.data.type "none" }}
{{- end }}
{{- end }}

{{- define "fedstrata.device.volumes" -}}
{{- include "fedstrata.stateVolume" (dict "root" . "component" "device") }}
{{- if eq .Values.data.type "hostPath" }}
- name: data
  hostPath:
    path: {{ .Values.data.hostPath | quote }}
    type: Directory
{{- else if eq .Values.data.type "claim" }}
- name: data
  persistentVolumeClaim:
    claimName: {{ .Values.data.claimName | quote }}
    readOnly: true
{{- else if and (eq .Values.data.type "none") (include "fedstrata.hasData" .) }}
- name: data
  emptyDir: {sizeLimit: {{ .Values.nodeDisk.data | quote }}}
{{- end }}
{{- end }}

{{- define "fedstrata.gps.mounts" -}}
- name: state
  mountPath: /state
{{- end }}

{{- define "fedstrata.lps.mounts" -}}
- name: state
  mountPath: /state
{{- end }}
