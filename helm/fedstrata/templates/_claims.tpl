{{/* The spec of one pod's claim: (dict "root" $ "component" "lps"). */}}
{{- define "fedstrata.claimSpec" -}}
{{- $persistence := (index .root.Values .component).persistence -}}
accessModes: [ReadWriteOnce]
{{- with $persistence.storageClass }}
storageClassName: {{ . | quote }}
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

{{/* Does the chart make a StatefulSet's claims itself? It does if they shall be deleted with the release and Kubernetes cannot do this. */}}
{{- define "fedstrata.makesClaims" -}}
{{- $persistence := (index .root.Values .component).persistence -}}
{{- $deletes := and $persistence.enabled (eq $persistence.retain "delete") -}}
{{- if and $deletes (not (include "fedstrata.since" (dict "root" .root "version" "1.27"))) }}true{{ end -}}
{{- end }}

{{/* The claims that the chart makes, with the names that the StatefulSet expects: (dict "root" $ "component" "lps" "count" 3). */}}
{{- define "fedstrata.ownClaims" -}}
{{- $tier := . -}}
{{- range $ordinal := until (int .count) }}
---
# Before 1.27 Kubernetes keeps a StatefulSet's claims. Claims of the chart are deleted with the release.
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: state-{{ include "fedstrata.fullname" $tier.root }}-{{ $tier.component }}-{{ $ordinal }}
  namespace: {{ $tier.root.Release.Namespace | quote }}
  labels:
    {{- include "fedstrata.labels" $tier | nindent 4 }}
spec:
  {{- include "fedstrata.claimSpec" $tier | nindent 2 }}
{{- end }}
{{- end }}

{{/* The volume for a tier's state if no claim is mounted: it survives a restart of the container, but not of the pod. */}}
{{- define "fedstrata.stateVolume" -}}
{{- if not (index .root.Values .component).persistence.enabled }}
- name: state
  emptyDir: {sizeLimit: {{ .root.Values.nodeDisk.state | quote }}}
{{- end }}
{{- end }}
