{{/* The number of pods of each tier. If values and experiment contradict each other, the message names both. */}}

{{/* May the GPS scale the LPSs? The right comes from the chart's Role, or from the account in gps.serviceAccount.name. */}}
{{- define "fedstrata.mayScale" -}}
{{- if or .Values.gps.rbac.create .Values.gps.serviceAccount.name }}true{{ end -}}
{{- end }}

{{/* A tier's present number of pods, if the run is over, so that the number stays: (dict "root" $ "component" "lps"). */}}
{{- define "fedstrata.replicasOfEnd" -}}
{{- if and (fromJson (include "fedstrata.run" .root)).isOver .root.Values.gps.persistence.enabled -}}
{{- with lookup "apps/v1" "StatefulSet" .root.Release.Namespace (printf "%s-%s" (include "fedstrata.fullname" .root) .component) }}{{ int .spec.replicas }}{{ end -}}
{{- end -}}
{{- end }}

{{/* The number of LPS pods. If only the GPS knows it, the GPS scales them, so an upgrade keeps the present number. */}}
{{- define "fedstrata.lpsReplicas" -}}
{{- $plan := fromJson (include "fedstrata.plan" .) -}}
{{- $kept := include "fedstrata.replicasOfEnd" (dict "root" . "component" "lps") -}}
{{- if $kept -}}
  {{- $kept -}}
{{- else if ne (toString $plan.lps) "auto" -}}
  {{- int $plan.lps -}}
{{- else -}}
  {{- if not (include "fedstrata.mayScale" .) -}}
  {{- fail (printf "the number of LPSs of experiment %s is not given, and gps.rbac.create is false, so the GPS may not scale them. Set lps.replicas, which `fedstrata check` shows, or topology.lps in the experiment; or gps.rbac.create to true; or name an account that has the rights in gps.serviceAccount.name" $plan.name) -}}
  {{- end -}}
  {{- $live := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-lps" (include "fedstrata.fullname" .)) -}}
  {{- if $live }}{{ int $live.spec.replicas }}{{ else }}0{{ end -}}
{{- end -}}
{{- end }}

{{/* The number of device pods of a StatefulSet: enough for all devices of the experiment except the external ones. */}}
{{- define "fedstrata.deviceReplicas" -}}
{{- $plan := fromJson (include "fedstrata.plan" .) -}}
{{- $device := .Values.device -}}
{{- $perPod := int $device.devicesPerPod -}}
{{- $hosted := sub (int $plan.devices) (int $device.external) | int -}}
{{- if lt $hosted 0 -}}
{{- fail (printf "device.external is %d, more than the %d devices of experiment %s" (int $device.external) (int $plan.devices) $plan.name) -}}
{{- end -}}
{{- if and (gt (int $device.external) 0) (ne (mod $hosted $perPod) 0) -}}
{{- fail (printf "device.external leaves %d devices, which do not fill pods of %d (device.devicesPerPod); change one of the two" $hosted $perPod) -}}
{{- end -}}
{{- $pods := div (sub (add $hosted $perPod) 1) $perPod | int -}}
{{- if and (not (kindIs "invalid" $device.replicas)) (ne (int $device.replicas) $pods) -}}
{{- fail (printf "device.replicas is %d, but the %d devices of experiment %s, %d to a pod, make %d pods. Leave device.replicas out, or change device.devicesPerPod" (int $device.replicas) $hosted $plan.name $perPod $pods) -}}
{{- end -}}
{{- $pods -}}
{{- end }}

{{/* Refuses values for devices that contradict each other or the experiment. */}}
{{- define "fedstrata.checkDevices" -}}
{{- $plan := fromJson (include "fedstrata.plan" .) -}}
{{- $device := .Values.device -}}
{{- $data := .Values.data -}}
{{- $allElsewhere := eq (int $device.external) (int $plan.devices) -}}
{{- if and $plan.local (ne $device.kind "DaemonSet") (not $allElsewhere) -}}
{{- fail (printf "experiment %s has partition.kind local, so its devices are boards with their own data: set device.kind to DaemonSet for boards that are nodes, or device.external to %d for boards outside of the cluster" $plan.name (int $plan.devices)) -}}
{{- end -}}
{{- if eq $device.kind "DaemonSet" -}}
  {{- if not $plan.local }}{{ fail (printf "device.kind DaemonSet gives every node its own device, so the experiment must name the nodes: set partition.kind local with names; experiment %s does not" $plan.name) }}{{ end -}}
  {{- if $device.persistence.enabled }}{{ fail "device.persistence is enabled, but a DaemonSet cannot give each pod a claim: leave device.persistence out. A board's personal state then survives a restart of its container, but not of its pod" }}{{ end -}}
  {{- if or (ne (int $device.devicesPerPod) 1) (gt (int $device.external) 0) (not (kindIs "invalid" $device.replicas)) -}}
  {{- fail "device.kind DaemonSet has one device on each node: leave device.replicas, device.devicesPerPod and device.external out" -}}
  {{- end -}}
{{- end -}}
{{- if and (not $allElsewhere) (eq $data.type "none") (not (has $plan.data (list "digits" "fcube" "synthetic"))) (not (contains ":" $plan.data)) (not $plan.download) -}}
{{- fail (printf "experiment %s reads %s from files: set data.type to hostPath, claim or image, or data.download to true in the experiment" $plan.name $plan.data) -}}
{{- end -}}
{{- if and (eq $data.type "hostPath") (not $data.hostPath) }}{{ fail "data.type is hostPath, but data.hostPath is empty: give a folder of the node, for instance /var/lib/fedstrata" }}{{ end -}}
{{- if and (eq $data.type "claim") (not $data.claimName) }}{{ fail "data.type is claim, but data.claimName is empty: give the name of a PersistentVolumeClaim in the namespace" }}{{ end -}}
{{- end }}

{{/* The names of device pods, as a list: those of a StatefulSet, and device.externalPods. The names of a DaemonSet's pods are unknown. */}}
{{- define "fedstrata.devicePods" -}}
{{- if eq .Values.device.kind "StatefulSet" }}
{{- range $ordinal := until (include "fedstrata.deviceReplicas" . | int) }}
- {{ include "fedstrata.fullname" $ }}-device-{{ $ordinal }}
{{- end }}
{{- range .Values.device.externalPods }}
- {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
