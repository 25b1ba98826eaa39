{{/* Containers that run before a tier's container, and own code. Each template says whether it takes the root or (dict "root" $ "component" "lps"). */}}

{{/* A tier's own volumes: (dict "root" $ "component" "lps"). */}}
{{- define "fedstrata.extraVolumes" -}}
{{- $component := .component -}}
{{- with (index .root.Values .component).extraVolumes }}
{{- range . }}
{{- if has .name (list "state" "data" "code" "experiment" "tls" "revoked" "tmp") }}{{ fail (printf "%s.extraVolumes: %s is one of the chart's own (state, data, code, experiment, tls, revoked, tmp); choose another name" $component .name) }}{{ end }}
{{- end }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fedstrata.initContainers" -}}
{{- $tier := index .root.Values .component -}}
{{- include "fedstrata.volumeOwner" . }}
{{- include "fedstrata.codeCopy" .root }}
{{- with $tier.initContainers }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A container that gives a new volume to the tier's user, if the volume belongs to root. */}}
{{- define "fedstrata.volumeOwner" -}}
{{- $security := fromYaml (include "fedstrata.podSecurityContext" .) -}}
{{- if and .root.Values.volumeOwner.enabled (index .root.Values .component).persistence.enabled }}
{{- if not (and $security.runAsUser $security.runAsGroup) }}{{ fail "volumeOwner.enabled gives volumes to podSecurityContext.runAsUser and runAsGroup: set both, or set volumeOwner.enabled to false" }}{{ end }}
- name: volume-owner
  image: {{ include "fedstrata.image" . | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [python3, -c, "import os; os.chown('/state', {{ int $security.runAsUser }}, {{ int $security.runAsGroup }})"]
  resources:
    requests: {cpu: 50m, memory: 32Mi, ephemeral-storage: 16Mi}
    limits: {cpu: 500m, memory: 64Mi, ephemeral-storage: 64Mi}
  securityContext:
    runAsUser: 0
    runAsNonRoot: false
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
      add: [CHOWN]
  volumeMounts:
    - name: state
      mountPath: /state
{{- end }}
{{- end }}

{{/* --- own code, which an experiment names as module:function: all of these take the root ------------------------- */}}

{{/* The folder of own code in pods; empty if there is none. Own code comes from one source only. */}}
{{- define "fedstrata.codeFolder" -}}
{{- $code := .Values.code -}}
{{- $given := list -}}
{{- range $name := list "files" "configMap" "image" }}{{ if get $code $name }}{{ $given = append $given (printf "code.%s" $name) }}{{ end }}{{ end -}}
{{- range $name, $_ := $code.files -}}
{{- $module := regexFind "^[A-Za-z_][A-Za-z0-9_]*\\.[A-Za-z0-9]+$" $name -}}
{{- if or (not $module) (has $name (list "gps.py" "lps.py" "device.py" "fedstrata.py")) }}{{ fail (printf "code.files: %s cannot be imported: a file's name has letters, digits and underscores before its ending, and is not gps, lps, device or fedstrata; rename the file" $name) }}{{ end -}}
{{- end -}}
{{- if gt (len $given) 1 }}{{ fail (printf "own code comes from one source, but %s are given: leave out all but one" (join " and " $given)) }}{{ end -}}
{{- if $given }}/code{{ end -}}
{{- end }}

{{- define "fedstrata.codeMount" -}}
{{- with include "fedstrata.codeFolder" . }}
- name: code
  mountPath: {{ . }}
  readOnly: true
{{- end }}
{{- end }}

{{- define "fedstrata.codeVolume" -}}
{{- if .Values.code.image }}
- name: code
  emptyDir: {sizeLimit: {{ .Values.nodeDisk.data | quote }}}
{{- else if include "fedstrata.codeFolder" . }}
- name: code
  configMap:
    name: {{ .Values.code.configMap | default (printf "%s-code" (include "fedstrata.fullname" .)) | quote }}
{{- end }}
{{- end }}

{{/* A container that copies own code from an image with the image's own `cp`. Every Kubernetes can do this; volumes of images need 1.33. */}}
{{- define "fedstrata.codeCopy" -}}
{{- if .Values.code.image }}
- name: code
  image: {{ .Values.code.image | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [cp, -R, {{ printf "%s/." (trimSuffix "/" .Values.code.imagePath) | quote }}, /own-code]
  resources:
    requests: {cpu: 50m, memory: 32Mi, ephemeral-storage: 16Mi}
    limits: {cpu: 500m, memory: 64Mi, ephemeral-storage: 64Mi}
  securityContext:
    {{- toYaml .Values.containerSecurityContext | nindent 4 }}
  volumeMounts:
    - name: code
      mountPath: /own-code
{{- end }}
{{- end }}
