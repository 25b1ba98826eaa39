{{/* The spec of one pod's claim: (dict "root" $ "component" "lps"). */}}
{{- define "fedstrata.claimSpec" -}}
{{- $persistence := (index .root.Values .component).persistence -}}
accessModes: [ReadWriteOnce]
{{- with $persistence.storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ $persistence.size }}
{{- end }}

{{/* A StatefulSet's claims. Kubernetes deletes them with the set from 1.27 on; before, see fedstrata.ownClaims. */}}
{{- define "fedstrata.claimTemplates" -}}
{{- $persistence := (index .root.Values .component).persistence -}}
{{- if $persistence.enabled }}
{{- if include "fedstrata.since" (dict "root" .root "version" "1.27") }}
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
        {{- include "fedstrata.selectorLabels" . | nindent 8 }}
    spec:
      {{- include "fedstrata.claimSpec" . | nindent 6 }}
{{- end }}
{{- end }}

{{/* Does the chart make a StatefulSet's claims itself? Where they shall go with the release and Kubernetes does not see to it. */}}
{{- define "fedstrata.makesClaims" -}}
{{- $persistence := (index .root.Values .component).persistence -}}
{{- $deletes := and $persistence.enabled (eq $persistence.retain "delete") -}}
{{- if and $deletes (not (include "fedstrata.since" (dict "root" .root "version" "1.27"))) }}true{{ end -}}
{{- end }}

{{/* These claims, under the names that the set looks for: (dict "root" $ "component" "lps" "count" 3). */}}
{{- define "fedstrata.ownClaims" -}}
{{- $tier := . -}}
{{- range $ordinal := until (int .count) }}
---
# Before 1.27 Kubernetes keeps a StatefulSet's claims. Made here, they go with the release.
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: state-{{ include "fedstrata.fullname" $tier.root }}-{{ $tier.component }}-{{ $ordinal }}
  namespace: {{ $tier.root.Release.Namespace }}
  labels:
    {{- include "fedstrata.labels" $tier | nindent 4 }}
spec:
  {{- include "fedstrata.claimSpec" $tier | nindent 2 }}
{{- end }}
{{- end }}

{{/* Where a tier's pods keep state, when no claim of the set is mounted there: it outlives the container, not the pod. */}}
{{- define "fedstrata.stateVolume" -}}
{{- if not (index .root.Values .component).persistence.enabled }}
- name: state
  emptyDir: {}
{{- end }}
{{- end }}
