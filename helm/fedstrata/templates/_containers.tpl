{{/* What is particular to each tier's container: its arguments, environment, mounts and volumes. */}}

{{- define "fedstrata.gps.args" -}}
- --experiment=/etc/fedstrata/experiment.yaml
- --state=/state
- --listen=0.0.0.0:{{ .Values.ports.grpc }}
- --http=0.0.0.0:{{ .Values.ports.http }}
- --lps-backend=kubernetes
{{- end }}

{{- define "fedstrata.gps.env" -}}
- name: FEDSTRATA_LPS_STATEFULSET
  value: {{ include "fedstrata.fullname" . }}-lps
- name: FEDSTRATA_RELEASE
  value: {{ .Release.Name }}
- name: FEDSTRATA_POD_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
{{- end }}

{{- define "fedstrata.gps.volumes" -}}
{{- if .Values.gps.persistence.enabled }}
- name: state
  persistentVolumeClaim:
    claimName: {{ include "fedstrata.gpsClaim" . }}
{{- else }}
- name: state
  emptyDir: {}
{{- end }}
{{- end }}

{{- define "fedstrata.lps.args" -}}
- --experiment=/etc/fedstrata/experiment.yaml
- --state=/state
- --gps={{ include "fedstrata.gpsAddress" . }}
- --listen=0.0.0.0:{{ .Values.ports.grpc }}
- --advertise=$(FEDSTRATA_POD_NAME).{{ include "fedstrata.fullname" . }}-lps.{{ .Release.Namespace }}.svc:{{ .Values.ports.grpc }}
- --http=0.0.0.0:{{ .Values.ports.http }}
{{- end }}

{{- define "fedstrata.lps.env" -}}{{- end }}

{{- define "fedstrata.lps.volumes" -}}
{{- if not .Values.lps.persistence.enabled }}
- name: state
  emptyDir: {}
{{- end }}
{{- end }}

{{- define "fedstrata.device.args" -}}
- --experiment=/etc/fedstrata/experiment.yaml
- --gps={{ include "fedstrata.gpsAddress" . }}
- --http=0.0.0.0:{{ .Values.ports.http }}
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
  value: {{ .Values.data.path }}
{{- end }}
{{- end }}

{{/* Do devices have a data folder? `none` has one only for what the experiment downloads. */}}
{{- define "fedstrata.hasData" -}}
{{- if or (ne .Values.data.type "none") (fromJson (include "fedstrata.plan" .)).download }}true{{ end -}}
{{- end }}

{{- define "fedstrata.device.mounts" -}}
{{- if and (include "fedstrata.hasData" .) (ne .Values.data.type "image") }}
- name: data
  mountPath: {{ .Values.data.path }}
  readOnly: {{ ne .Values.data.type "none" }}
{{- end }}
{{- end }}

{{- define "fedstrata.device.volumes" -}}
{{- if eq .Values.data.type "hostPath" }}
- name: data
  hostPath:
    path: {{ .Values.data.hostPath }}
    type: Directory
{{- else if eq .Values.data.type "claim" }}
- name: data
  persistentVolumeClaim:
    claimName: {{ .Values.data.claimName }}
    readOnly: true
{{- else if and (eq .Values.data.type "none") (include "fedstrata.hasData" .) }}
- name: data
  emptyDir: {}
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
