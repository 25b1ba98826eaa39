{{/* The experiment's text, as given: the value, or the chart's own. */}}
{{- define "fedstrata.experiment" -}}
{{ .Values.experiment | default (.Files.Get "files/digits.yaml") }}
{{- end }}

{{- define "fedstrata.experimentError" -}}
{{- fail (printf "experiment: %s. Give the whole file with --set-file experiment=FILE.yaml" .) -}}
{{- end }}

{{/* What the chart needs of the experiment, as JSON: name, devices, clusters (a number or "auto"), names (of a local
     partition), data, download, globalRounds. The services check the rest; here only what the pods depend on. */}}
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
{{- $devices := 0 -}}
{{- if eq (toString $partition.kind) "tasks" -}}
  {{- range $task := $partition.tasks -}}
  {{- $devices = add $devices (include "fedstrata.count" (dict "value" $task.devices "key" (printf "partition.tasks: devices of %s" $task.name))) -}}
  {{- end -}}
{{- else if eq (toString $partition.kind) "local" -}}
  {{- $devices = len ($partition.names | default list) -}}
{{- else if has (toString $partition.kind) (list "dirichlet" "iid") -}}
  {{- $devices = include "fedstrata.count" (dict "value" $partition.devices "key" "partition.devices") | int -}}
{{- else -}}
  {{- include "fedstrata.experimentError" (printf "partition.kind is %v; choose tasks, dirichlet, iid or local" $partition.kind) -}}
{{- end -}}
{{- if lt (int $devices) 1 }}{{ include "fedstrata.experimentError" "it has no devices; partition gives at least one" }}{{ end -}}
{{- $method := $file.method | default dict -}}
{{- if kindIs "string" $method }}{{ $method = dict "name" $method }}{{ end -}}
{{- $clusters := $method.clusters | default "auto" -}}
{{- if ne (toString $clusters) "auto" -}}
  {{- $clusters = include "fedstrata.count" (dict "value" $clusters "key" "method.clusters") | int -}}
  {{- if gt $clusters (int $devices) }}{{ include "fedstrata.experimentError" (printf "method.clusters is %d, more than the %d devices" $clusters (int $devices)) }}{{ end -}}
{{- end -}}
{{- $data := $file.data | default dict -}}
{{- $training := $file.training | default dict -}}
{{- dict "name" $file.name "devices" (int $devices) "clusters" $clusters "names" ($partition.names | default list) "local" (eq $partition.kind "local")
      "data" ($data.name | default "digits") "download" (default false $data.download)
      "globalRounds" (int ($training.global_rounds | default 5)) | toJson -}}
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
