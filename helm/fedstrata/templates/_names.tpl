{{/* The name of all objects: RELEASE-fedstrata, or RELEASE if it has fedstrata in it already. At most 40
     characters, so that a pod's name and its revision label stay within 63. A Service's name begins with a letter, and has no dots. */}}
{{- define "fedstrata.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $name = ternary .Release.Name (printf "%s-fedstrata" .Release.Name) (contains "fedstrata" .Release.Name) -}}
{{- end -}}
{{- $name = $name | replace "." "-" -}}
{{- if regexMatch "^[0-9]" $name }}{{ $name = printf "r%s" $name }}{{ end -}}
{{- if gt (len $name) 40 -}}
{{- $name = printf "%s-%s" ($name | trunc 31 | trimSuffix "-") ($name | sha256sum | trunc 8) -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{/* The labels that a selector uses: (dict "root" $ "component" "lps"); without a component, all pods of the release. */}}
{{- define "fedstrata.selectorLabels" -}}
app.kubernetes.io/name: fedstrata
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* All labels of an object: (dict "root" $ "component" "lps"). */}}
{{- define "fedstrata.labels" -}}
{{ include "fedstrata.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: fedstrata
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A tier's image: (dict "root" $ "component" "gps"). A digest wins over the tag, the tag over the chart's appVersion. */}}
{{- define "fedstrata.image" -}}
{{- $shared := .root.Values.image -}}
{{- $own := (index .root.Values .component).image -}}
{{- $tag := $own.tag | default $shared.tag | default .root.Chart.AppVersion -}}
{{- if eq $tag "latest" -}}
{{- fail (printf "%s.image.tag: latest does not say which version runs; give a version or a digest" .component) -}}
{{- end -}}
{{- with (.root.Values.global).imageRegistry | default $shared.registry }}{{ . }}/{{ end -}}
{{- $own.repository -}}
{{- if $own.digest }}@{{ $own.digest }}{{ else }}:{{ $tag }}{{ end -}}
{{- end }}

{{/* The address of the GPS for LPSs and devices in pods. */}}
{{- define "fedstrata.gpsAddress" -}}
{{ include "fedstrata.fullname" . }}-gps.{{ .Release.Namespace }}.svc:{{ .Values.ports.grpc }}
{{- end }}

{{/* A tier's service account: the given one. Otherwise the GPS has its own, and other tiers have the namespace's default. */}}
{{- define "fedstrata.serviceAccount" -}}
{{- $named := (index .root.Values .component).serviceAccount.name -}}
{{- $own := ternary (printf "%s-gps" (include "fedstrata.fullname" .root)) "" (eq .component "gps") -}}
{{ $named | default $own }}
{{- end }}

{{/* The claim that holds the GPS's state. */}}
{{- define "fedstrata.gpsClaim" -}}
{{ .Values.gps.persistence.existingClaim | default (printf "%s-gps" (include "fedstrata.fullname" .)) }}
{{- end }}

{{/* Does this Kubernetes have at least a version? (dict "root" $ "version" "1.21") gives true or nothing. */}}
{{- define "fedstrata.since" -}}
{{- if semverCompare (printf ">=%s-0" .version) .root.Capabilities.KubeVersion.Version }}true{{ end -}}
{{- end }}
