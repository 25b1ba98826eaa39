{{/* The experiment's text, as given: the value, or the chart's own. */}}
{{- define "fedstrata.experiment" -}}
{{ .Values.experiment | default (.Files.Get "files/digits.yaml") }}
{{- end }}

{{- define "fedstrata.experimentError" -}}
{{- fail (printf "experiment: %s. Give the whole file with --set-file experiment=FILE.yaml" .) -}}
{{- end }}

{{/* The parts of the experiment that the chart needs, as JSON: name, devices, lps (the number of LPSs at the start, or "auto"), names (of
     devices, if the partition has names), data, download, globalRounds. The services check all other keys. */}}
{{- define "fedstrata.plan" -}}
{{- $text := include "fedstrata.experiment" . -}}
{{- if gt (len $text) 1000000 }}{{ include "fedstrata.experimentError" "the file is larger than the 1 MB that a ConfigMap holds" }}{{ end -}}
{{- $file := fromYaml $text -}}
{{- if and (hasKey $file "Error") (not (hasKey $file "partition")) -}}
{{- include "fedstrata.experimentError" (printf "it must be YAML, a mapping of keys to values: %s" $file.Error) -}}
{{- end -}}
{{- if not (kindIs "string" $file.name) }}{{ include "fedstrata.experimentError" "name is missing" }}{{ end -}}
{{- $partition := $file.partition -}}
{{- if not (kindIs "map" $partition) }}{{ include "fedstrata.experimentError" "partition is missing; it says how many devices there are" }}{{ end -}}
{{- range $key := list "data" "training" -}}
{{- if and (get $file $key) (not (kindIs "map" (get $file $key))) }}{{ include "fedstrata.experimentError" (printf "%s must be a mapping of keys to values, not %v" $key (get $file $key)) }}{{ end -}}
{{- end -}}
{{- with $partition.names -}}
{{- if not (kindIs "slice" .) }}{{ include "fedstrata.experimentError" (printf "partition.names must be a list of texts, not %v" .) }}{{ end -}}
{{- range . }}{{ if not (kindIs "string" .) }}{{ include "fedstrata.experimentError" (printf "partition.names must be a list of texts, and has %v; put it into quotes" .) }}{{ end }}{{ end -}}
{{- end -}}
{{- $devices := 0 -}}
{{- if has (toString $partition.kind) (list "tasks" "groups") -}}
  {{- range $group := get $partition $partition.kind | default list -}}
  {{- $devices = add $devices (include "fedstrata.count" (dict "value" $group.devices "key" (printf "partition.%s: devices of %s" $partition.kind $group.name))) -}}
  {{- end -}}
{{- else if eq (toString $partition.kind) "local" -}}
  {{- $devices = len ($partition.names | default list) -}}
{{- else if and (has (toString $partition.kind) (list "natural" "given")) (or $partition.names $partition.examples) -}}
  {{- $devices = len ($partition.names | default $partition.examples) -}}
{{- else if and (contains ":" (toString $partition.kind)) (kindIs "invalid" $partition.devices) -}}
  {{- include "fedstrata.experimentError" (printf "partition.kind is %s, and partition.devices is missing; the chart cannot ask your class for the number of devices, so give the class a key devices, and set it" $partition.kind) -}}
{{- else if $partition.kind -}}
  {{- $devices = include "fedstrata.count" (dict "value" $partition.devices "key" "partition.devices") | int -}}
{{- else -}}
  {{- include "fedstrata.experimentError" "partition.kind is missing; give one, such as iid" -}}
{{- end -}}
{{- if lt (int $devices) 1 }}{{ include "fedstrata.experimentError" "it has no devices; partition gives at least one" }}{{ end -}}
{{- $lps := include "fedstrata.lpsCount" (dict "root" $ "file" $file "devices" (int $devices)) -}}
{{- $data := $file.data | default dict -}}
{{- $training := $file.training | default dict -}}
{{- $names := list -}}
{{- range $partition.names }}{{ $names = append $names (regexReplaceAll "[^a-z0-9.-]+" (lower .) "-" | trimAll ".-") }}{{ end -}}
{{- dict "name" $file.name "devices" (int $devices) "lps" $lps "names" $names "local" (eq $partition.kind "local")
      "data" ($data.name | default "digits") "download" (default false $data.download)
      "globalRounds" (int ($training.global_rounds | default 5)) | toJson -}}
{{- end }}

{{/* The number of LPSs at the start of the run: from the experiment's topology, otherwise from lps.replicas. If neither gives it,
     `auto`: then there are none until the GPS scales them, because only the GPS knows what the method needs. */}}
{{- define "fedstrata.lpsCount" -}}
{{- $topology := .file.topology -}}
{{- $given := .root.Values.lps.replicas -}}
{{- if and $topology (not (kindIs "map" $topology)) }}{{ include "fedstrata.experimentError" "topology must say lps, how many LPSs there are" }}{{ end -}}
{{- if $topology -}}
  {{- $count := include "fedstrata.atMost" (dict "value" $topology.lps "key" "topology.lps" "devices" .devices) | int -}}
  {{- if and (not (kindIs "invalid" $given)) (ne (int $given) $count) -}}
  {{- fail (printf "lps.replicas is %d, but topology.lps of experiment %s is %d. Set lps.replicas to null, or change the experiment" (int $given) .file.name $count) -}}
  {{- end -}}
  {{- $count -}}
{{- else if kindIs "invalid" $given -}}
  auto
{{- else if gt (int $given) .devices -}}
  {{- fail (printf "lps.replicas is %d, more than the %d devices of experiment %s. Set lps.replicas to null, or to at most this number" (int $given) .devices .file.name) -}}
{{- else -}}
  {{- int $given -}}
{{- end -}}
{{- end }}

{{/* A whole number from 1 up to the number of devices. */}}
{{- define "fedstrata.atMost" -}}
{{- $count := include "fedstrata.count" . | int -}}
{{- if gt $count .devices }}{{ include "fedstrata.experimentError" (printf "%s is %d, more than the %d devices" .key $count .devices) }}{{ end -}}
{{- $count -}}
{{- end }}

{{/* A whole number from 1 up, or a failure that names the key. */}}
{{- define "fedstrata.count" -}}
{{- $isNumber := has (kindOf .value) (list "float64" "int64" "int") -}}
{{- if not $isNumber }}{{ include "fedstrata.experimentError" (printf "%s must be a whole number from 1 up, not %v" .key .value) }}{{ end -}}
{{- if or (ne (float64 .value) (floor .value)) (lt (float64 .value) 1.0) -}}
{{- include "fedstrata.experimentError" (printf "%s must be a whole number from 1 up, not %v" .key .value) -}}
{{- end -}}
{{- int .value -}}
{{- end }}
