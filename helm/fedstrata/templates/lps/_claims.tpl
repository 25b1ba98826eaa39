{{/* The spec of one LPS's claim. */}}
{{- define "fedstrata.lpsClaimSpec" -}}
accessModes: [ReadWriteOnce]
{{- with .Values.lps.persistence.storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .Values.lps.persistence.size }}
{{- end }}

{{/* The StatefulSet's claims. Kubernetes deletes them with the set from 1.27 on; before, see claims.yaml. */}}
{{- define "fedstrata.lpsClaims" -}}
{{- $persistence := .Values.lps.persistence -}}
{{- if $persistence.enabled }}
{{- if include "fedstrata.since" (dict "root" . "version" "1.27") }}
persistentVolumeClaimRetentionPolicy:
  whenDeleted: {{ ternary "Retain" "Delete" (eq $persistence.retain "keep") }}
  whenScaled: Retain
{{- end }}
volumeClaimTemplates:
  - apiVersion: v1
    kind: PersistentVolumeClaim
    metadata:
      name: state
      labels:
        {{- include "fedstrata.selectorLabels" (dict "root" . "component" "lps") | nindent 8 }}
    spec:
      {{- include "fedstrata.lpsClaimSpec" . | nindent 6 }}
{{- end }}
{{- end }}
